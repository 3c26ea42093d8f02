// A (B, H, rows, width) array of numbers whose gaps are poisoned, as the checks hand it to plugins.
#pragma once
#include <attnkit/plugin.h>

#include <attnkit/kernels/random.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

namespace attnkit::core::conformance {

// The layout of an array in memory: as a model's projections leave it (b, row, head, width) with a gap after each row,
// plainly (b, head, row, width), (head, b, row, width) from one element after an aligned address on, with gaps that
// leave no row aligned, with the rows of one head for all heads of the batch, or with one row for all of a sequence.
enum class Layout { kModel, kPlain, kOdd, kOneHead, kOneRow };

template <class Real>
class BasicArray {
 public:
  BasicArray() = default;
  // All elements and gaps are NaN.
  BasicArray(int64_t batch, int64_t heads, int64_t rows, int64_t width, Layout layout = Layout::kModel);
  // The same numbers in the same layout; of a table, the same bytes.
  template <class Other>
  explicit BasicArray(const BasicArray<Other>& other);
  // A stored tensor of up to 4 dimensions, contiguous; at() sees a column of numbers, and of a table whose elements are
  // not Real its bytes as such.
  static BasicArray stored(const attn_port& port);

  Real& at(int64_t b, int64_t h, int64_t i, int64_t c) { return data_[index(b, h, i, c)]; }
  Real at(int64_t b, int64_t h, int64_t i, int64_t c) const { return data_[index(b, h, i, c)]; }
  // Sets every element: deterministic normal numbers that f32 holds, or what f says.
  void randomize(uint64_t seed);
  void set(const std::function<Real(int64_t b, int64_t h, int64_t i, int64_t c)>& f);

  // Makes all elements and gaps NaN again.
  void poison();

  // Rows [from, from + count) of all heads.
  attn_tensor tensor(int64_t from, int64_t count);
  attn_tensor tensor() { return tensor(0, rows); }
  std::vector<Real>& data() { return data_; }
  const std::vector<Real>& data() const { return data_; }
  // Are the gaps, and the memory behind the last row, what they were at first?
  bool gaps_intact() const;

  int64_t batch = 0, heads = 0, rows = 0, width = 0;

 private:
  template <class Other>
  friend class BasicArray;
  int64_t index(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return stored_ ? i : begin_ + b * stride_[0] + h * stride_[1] + i * stride_[2] + c;
  }
  bool stored_ = false;
  int64_t begin_ = 0;  // of the first element in data_
  uint32_t ndim_ = 4;
  uint8_t dtype_code_ = 2, table_bits_ = 0;  // bits: of a table's elements, which have a type of their own; else 0
  int64_t shape_[4] = {}, stride_[4] = {};
  std::vector<Real> data_;
};

// Bytes from the first element of a tensor to its last.
inline uint64_t extent(const attn_tensor& t) {
  int64_t last = 0;
  for (uint32_t i = 0; i < t.ndim; ++i) {
    if (t.shape[i] == 0) return 0;
    last += (t.shape[i] - 1) * t.stride[i];
  }
  return static_cast<uint64_t>(last + 1) * (t.dtype_bits / 8);
}

using Array = BasicArray<float>;
using Array64 = BasicArray<double>;

// Bit for bit, NaN included; gaps do not count.
template <class Real>
bool same_bits(const BasicArray<Real>& a, const BasicArray<Real>& b);
// The same for one batch row and head, rows [0, count).
template <class Real>
bool same_bits(const BasicArray<Real>& a, int64_t b, int64_t h, const BasicArray<Real>& other, int64_t other_b,
               int64_t other_h, int64_t count);
template <class Real>
bool all_finite(const BasicArray<Real>& a);
// Is any element still the NaN that new arrays are made of?  Those that are computed have other bits.
template <class Real>
bool all_written(const BasicArray<Real>& a);

// The larger of two errors.  NaN is worse than any, in either place: no gate lets it pass.
inline double worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

// RMS of what is off over RMS of what is wanted; 0 when nothing is off, NaN when a number is.
class Ratio {
 public:
  void add(double got, double want) { add(got, want, want); }
  void add(double got, double want, double size) {
    off_ += (got - want) * (got - want);
    size_ += size * size;
  }
  double operator()() const { return off_ == 0 ? 0 : std::sqrt(off_ / size_); }

 private:
  double off_ = 0, size_ = 0;
};

// RMS of a - b over RMS of b.
double rms_ratio(const Array& a, const Array& b);

constexpr double kGate = 5e-6;  // of f32 results, as such a ratio

// The distribution of a stored tensor: means of its numbers' powers, and the largest.
struct Moments {
  double mean = 0, square = 0, fourth = 0, largest = 0;
};
Moments moments(const Array& stored);

// Deterministic standard normal numbers, the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : random_(attnkit::Random::plain(seed)) {}
  uint64_t bits() { return random_.bits(); }
  double uniform();  // in (0, 1)
  float normal();

 private:
  attnkit::Random random_;
};

}  // namespace attnkit::core::conformance
