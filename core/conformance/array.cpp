#include "core/conformance/array.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <type_traits>

namespace attnkit::core::conformance {

namespace {
// A NaN with bits that no arithmetic makes.
template <class Real>
const Real kNan = std::bit_cast<Real>(
    std::bit_cast<std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>>(std::numeric_limits<Real>::quiet_NaN()) |
    0x5A5A);
constexpr int64_t kGuard = 16;  // elements behind the last one, which are gaps as well
}  // namespace

template <class Real>
BasicArray<Real>::BasicArray(int64_t b, int64_t h, int64_t n, int64_t w, Layout layout)
    : batch(b), heads(h), rows(n), width(w) {
  const int64_t shape[4] = {b, h, n, w};
  const int64_t rows_of_model = h * w + 3, odd_row = w + 1 + w % 2;
  const int64_t strides[5][4] = {{n * rows_of_model, w, rows_of_model, 1},
                                 {h * n * w, n * w, w, 1},
                                 {n * odd_row, b * n * odd_row, odd_row, 1},
                                 {0, 0, w, 1},
                                 {w, 0, 0, 1}};
  std::memcpy(shape_, shape, sizeof shape);
  std::memcpy(stride_, strides[static_cast<int>(layout)], sizeof stride_);
  begin_ = layout == Layout::kOdd ? 1 : 0;
  const int64_t length[5] = {b * n * rows_of_model, b * h * n * w, begin_ + b * h * n * odd_row, n * w, b * w};
  data_.assign(static_cast<size_t>(length[static_cast<int>(layout)] + kGuard), kNan<Real>);
}

template <class Real>
template <class Other>
BasicArray<Real>::BasicArray(const BasicArray<Other>& other)
    : batch(other.batch),
      heads(other.heads),
      rows(other.rows),
      width(other.width),
      stored_(other.stored_),
      begin_(other.begin_),
      ndim_(other.ndim_),
      dtype_code_(other.dtype_code_),
      table_bits_(other.table_bits_) {
  std::memcpy(shape_, other.shape_, sizeof shape_);
  std::memcpy(stride_, other.stride_, sizeof stride_);
  // Poison of one type is none of the other when it is converted.
  std::transform(other.data_.begin(), other.data_.end(), std::back_inserter(data_), [](const Other& x) {
    return std::memcmp(&x, &kNan<Other>, sizeof x) == 0 ? kNan<Real> : static_cast<Real>(x);
  });
  if (table_bits_ != 0)
    std::memcpy(data_.data(), other.data_.data(),
                std::min(data_.size() * sizeof(Real), other.data_.size() * sizeof(Other)));
}

template <class Real>
BasicArray<Real> BasicArray<Real>::stored(const attn_port& port) {
  int64_t n = 1;
  for (uint32_t i = 0; i < port.ndim; ++i) n *= port.shape[i];
  const uint8_t table_bits = port.kind == ATTN_TABLE ? port.dtype_bits : 0;
  constexpr int64_t bits = 8 * sizeof(Real);
  if (table_bits != 0) n = (n * table_bits + bits - 1) / bits;
  BasicArray a(1, 1, n, 1, Layout::kPlain);
  a.data_.resize(static_cast<size_t>(n) + 1);  // only outputs need the guard
  a.stored_ = true;
  a.ndim_ = port.ndim;
  a.dtype_code_ = port.dtype_code;
  a.table_bits_ = table_bits;
  int64_t stride = 1;
  for (int i = port.ndim - 1; i >= 0; --i) {
    a.shape_[i] = port.shape[i];
    a.stride_[i] = stride;
    stride *= port.shape[i];
  }
  return a;
}

namespace {

// The first normal numbers of a seed.  A check draws the same ones for places and lengths without end, so they are
// kept.
const float* normals(uint64_t seed, size_t count) {
  struct Stream {
    Random random;
    std::vector<float> made;
  };
  constexpr size_t most = size_t{1} << 24;
  thread_local std::map<uint64_t, Stream> streams;
  thread_local size_t kept = 0;
  if (kept > most) streams.clear(), kept = 0;
  Stream& stream = streams.try_emplace(seed, Stream{Random(seed), {}}).first->second;
  for (; stream.made.size() < count; ++kept) stream.made.push_back(stream.random.normal());
  return stream.made.data();
}

}  // namespace

template <class Real>
void BasicArray<Real>::randomize(uint64_t seed) {
  const float* number = normals(seed, static_cast<size_t>(batch * heads * rows * width));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = 0; c < width; ++c) at(b, h, i, c) = static_cast<Real>(*number++);
}

template <class Real>
void BasicArray<Real>::set(const std::function<Real(int64_t, int64_t, int64_t, int64_t)>& f) {
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = 0; c < width; ++c) at(b, h, i, c) = f(b, h, i, c);
}

template <class Real>
void BasicArray<Real>::poison() {
  std::fill(data_.begin(), data_.end(), kNan<Real>);
}

template <class Real>
attn_tensor BasicArray<Real>::tensor(int64_t from, int64_t count) {
  attn_tensor t{};
  t.data = data_.data() + (stored_ ? 0 : begin_ + from * stride_[2]);
  std::memcpy(t.shape, shape_, sizeof shape_);
  std::memcpy(t.stride, stride_, sizeof stride_);
  if (!stored_) t.shape[2] = count;
  t.dtype_code = dtype_code_;
  t.dtype_bits = table_bits_ != 0 ? table_bits_ : 8 * sizeof(Real);
  t.dtype_lanes = 1;
  t.ndim = ndim_;
  t.device_type = 1;
  return t;
}

template <class Real>
bool BasicArray<Real>::gaps_intact() const {
  BasicArray gaps = *this;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < rows; ++i) std::fill_n(&gaps.at(b, h, i, 0), width, kNan<Real>);
  return std::all_of(gaps.data_.begin(), gaps.data_.end(),
                     [](const Real& x) { return std::memcmp(&x, &kNan<Real>, sizeof x) == 0; });
}

template <class Real>
bool same_bits(const BasicArray<Real>& a, int64_t b, int64_t h, const BasicArray<Real>& other, int64_t other_b,
               int64_t other_h, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t c = 0; c < a.width; ++c) {
      const Real x = a.at(b, h, i, c), y = other.at(other_b, other_h, i, c);
      if (std::memcmp(&x, &y, sizeof x) != 0) return false;
    }
  return true;
}

template <class Real>
bool same_bits(const BasicArray<Real>& a, const BasicArray<Real>& b) {
  if (a.batch != b.batch || a.heads != b.heads || a.rows != b.rows || a.width != b.width) return false;
  for (int64_t i = 0; i < a.batch; ++i)
    for (int64_t h = 0; h < a.heads; ++h)
      if (!same_bits(a, i, h, b, i, h, a.rows)) return false;
  return true;
}

template <class Real>
bool all_finite(const BasicArray<Real>& a) {
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t i = 0; i < a.rows; ++i)
        for (int64_t c = 0; c < a.width; ++c)
          if (!std::isfinite(a.at(b, h, i, c))) return false;
  return true;
}

template <class Real>
bool all_written(const BasicArray<Real>& a) {
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t i = 0; i < a.rows; ++i)
        for (int64_t c = 0; c < a.width; ++c) {
          const Real x = a.at(b, h, i, c);
          if (std::memcmp(&x, &kNan<Real>, sizeof x) == 0) return false;
        }
  return true;
}

template class BasicArray<float>;
template class BasicArray<double>;
template BasicArray<float>::BasicArray(const BasicArray<double>&);
template BasicArray<double>::BasicArray(const BasicArray<float>&);
template bool same_bits(const Array&, const Array&);
template bool same_bits(const Array64&, const Array64&);
template bool same_bits(const Array&, int64_t, int64_t, const Array&, int64_t, int64_t, int64_t);
template bool same_bits(const Array64&, int64_t, int64_t, const Array64&, int64_t, int64_t, int64_t);
template bool all_finite(const Array&);
template bool all_finite(const Array64&);
template bool all_written(const Array&);
template bool all_written(const Array64&);

double rms_ratio(const Array& a, const Array& b) {
  Ratio ratio;
  for (int64_t i = 0; i < a.batch; ++i)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t n = 0; n < a.rows; ++n)
        for (int64_t c = 0; c < a.width; ++c) ratio.add(a.at(i, h, n, c), b.at(i, h, n, c));
  return ratio();
}

Moments moments(const Array& stored) {
  Moments m;
  const auto count = static_cast<double>(stored.rows);
  for (int64_t i = 0; i < stored.rows; ++i) {
    const double x = stored.at(0, 0, i, 0);
    m.mean += x / count;
    m.square += x * x / count;
    m.fourth += x * x * x * x / count;
    m.largest = worse(m.largest, std::abs(x));
  }
  return m;
}

double Random::uniform() { return (static_cast<double>(bits() >> 12) + 0.5) / 4503599627370496.0; }

float Random::normal() {
  const double r = std::sqrt(-2 * std::log(uniform()));
  return static_cast<float>(r * std::cos(6.283185307179586 * uniform()));
}

}  // namespace attnkit::core::conformance
