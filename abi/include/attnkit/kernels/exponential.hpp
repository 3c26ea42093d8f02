// Feature maps made of e^x, for rows of any width.
#ifndef ATTNKIT_KERNELS_EXPONENTIAL_HPP
#define ATTNKIT_KERNELS_EXPONENTIAL_HPP
#include <attnkit/kernels/simd.hpp>

namespace attnkit {

namespace simd {

// The first n floats at p, at most 16; zeros in the other lanes.
ATTNKIT_INLINE void load(const float* p, int64_t n, Vec& x) {
  if (n >= kLanes) {
    x = at(p).v;
  } else {
    x = Vec{};
    std::memcpy(&x, p, static_cast<size_t>(n) * sizeof(float));
  }
}

// The first n lanes, at most 16, to p.
ATTNKIT_INLINE void store(const Vec& x, int64_t n, float* p) {
  if (n >= kLanes)
    at(p).v = x;
  else
    std::memcpy(p, &x, static_cast<size_t>(n) * sizeof(float));
}

}  // namespace simd

// row = elu(scale * x) + 1: y + 1 for positive y, otherwise e^y, which is 0 below -87; NaN stays NaN.
ATTNKIT_INLINE void elu1(const float* x, float scale, int64_t d, float* row) {
  for (int64_t f = 0; f < d; f += simd::kLanes) {
    simd::Vec y;
    simd::load(x + f, d - f, y);
    y *= scale;
    simd::Vec power = y;
    simd::exp(power);
    simd::store(y > 0 ? y + 1.0f : power, d - f, row + f);
  }
}

}  // namespace attnkit
#endif
