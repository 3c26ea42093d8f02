#include "core/model/dense.hpp"

#include <algorithm>
#include <attnkit/kernels/simd.hpp>
#include <cstring>

namespace attnkit {
namespace {

constexpr int64_t lanes = simd::kLanes;

struct Panels {
  const float *weight, *bias;
  int64_t inputs, outputs;
};

// R rows times P panels; every output is one chain of multiply-adds over the inputs, whatever R and P are.
template <int R, int P>
ATTNKIT_INLINE void tile(const Panels& w, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t panel) {
  simd::Vec acc[R][P];
  const float* weight = w.weight + panel * w.inputs * lanes;
  for (int p = 0; p < P; ++p) {
    for (int r = 0; r < R; ++r) acc[r][p] = simd::at(w.bias + (panel + p) * lanes).v;
  }
  for (int64_t k = 0; k < w.inputs; ++k) {
    for (int p = 0; p < P; ++p) {
      const simd::Vec column = simd::at(weight + (p * w.inputs + k) * lanes).v;
      for (int r = 0; r < R; ++r) acc[r][p] += x[r * x_stride + k] * column;
    }
  }
  for (int p = 0; p < P; ++p) {
    const int64_t first = (panel + p) * lanes;
    const int64_t n = std::min(lanes, w.outputs - first);
    for (int r = 0; r < R; ++r) {
      float* out = y + r * y_stride + first;
      if (n == lanes)
        simd::at(out).v = acc[r][p];
      else
        std::memcpy(out, &acc[r][p], static_cast<size_t>(n) * sizeof(float));
    }
  }
}

template <int R, int P>
ATTNKIT_INLINE void rows(const Panels& w, const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  const int64_t panels = (w.outputs + lanes - 1) / lanes;
  int64_t p = 0;
  for (; p + P <= panels; p += P) tile<R, P>(w, x, x_stride, y, y_stride, p);
  for (; p < panels; ++p) tile<R, 1>(w, x, x_stride, y, y_stride, p);
}

struct Apply {
  const Panels& w;
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride, begin, end;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    int64_t r = begin;
    for (; r + Isa::rows <= end; r += Isa::rows)
      rows<Isa::rows, Isa::columns>(w, x + r * x_stride, x_stride, y + r * y_stride, y_stride);
    // A single row has too few chains to fill the machine, so it takes several panels at once.
    for (; r < end; ++r) rows<1, 4>(w, x + r * x_stride, x_stride, y + r * y_stride, y_stride);
  }
};

}  // namespace

Dense::Dense(int64_t inputs, int64_t outputs, const std::vector<float>& weight, const std::vector<float>& bias)
    : inputs_(inputs), outputs_(outputs), has_bias_(!bias.empty()), packed_(std::make_shared<Buffer>()) {
  const int64_t padded = (outputs + lanes - 1) / lanes * lanes;
  float* packed = packed_->get<float>(padded * (inputs + 1));
  std::fill(packed, packed + padded * (inputs + 1), 0.0f);
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t k = 0; k < inputs; ++k) packed[(o / lanes * inputs + k) * lanes + o % lanes] = weight[o * inputs + k];
    if (has_bias_) packed[padded * inputs + o] = bias[o];
  }
}

Dense convolution_of(int64_t inputs, int64_t outputs, int64_t kernel, const std::vector<float>& weight,
                     const std::vector<float>& bias) {
  std::vector<float> by_row(weight.size());  // (outputs, kernel, inputs), as rows lie in memory
  for (int64_t o = 0; o < outputs; ++o)
    for (int64_t i = 0; i < inputs; ++i)
      for (int64_t k = 0; k < kernel; ++k)
        by_row[(o * kernel + k) * inputs + i] = weight[(o * inputs + i) * kernel + k];
  return Dense(inputs * kernel, outputs, by_row, bias);
}

std::span<const float> Dense::numbers() const {
  if (!packed_) return {};
  const int64_t padded = (outputs_ + lanes - 1) / lanes * lanes;
  return {packed_->get<float>(0), static_cast<size_t>(padded * (inputs_ + 1))};
}

void Dense::apply(Threads& threads, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t n) const {
  const int64_t padded = (outputs_ + lanes - 1) / lanes * lanes;
  const float* packed = packed_->get<float>(0);
  const Panels panels{packed, packed + padded * inputs_, inputs_, outputs_};
  // Below some 100k multiply-adds a second thread costs more than it saves.
  const int64_t grain = std::max<int64_t>(4, 100000 / std::max<int64_t>(1, inputs_ * outputs_));
  threads.each(n, grain, [&](int64_t begin, int64_t end, uint32_t) {
    simd::dispatch(Apply{panels, x, x_stride, y, y_stride, begin, end});
  });
}

}  // namespace attnkit
