// Activation functions of 16 floats at a time.  A NaN stays one.
#pragma once

#include <attnkit/kernels/simd.hpp>

#include "core/manifest/manifest.hpp"

namespace attnkit::core {

// The smaller of each lane and a bound.
template <class V>
ATTNKIT_INLINE V least(const V& x, simd::Lane<V> bound) {
  return simd::select(x < bound, x, bound - V{});
}

// x Phi(x), the exact GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415).
// Phi(-|x|) = erfc(a) / 2 with a = |x| / sqrt(2), and erfc(a) e^(a^2) is a polynomial of t = 1 / (1 + 0.4 a) without a
// constant term, fitted over 0 <= a <= 9.4 to 6.5e-9 of the value.  Measured error: 6e-7 of the value above -2 and 2e-5
// below, where the value itself is small; nowhere more than 2.4e-7 up to x = 14.
template <class V>
ATTNKIT_INLINE void gelu(V& x) {
  constexpr float halves[] = {-0.0154005042f, 0.1023009522f, -0.2571992831f, 0.2841819374f, -0.1509535066f,
                              0.1407815838f,  0.0631821300f, 0.1078187068f,  0.1124322501f, 0.1128557369f};
  // Beyond 14 Phi is 0 or 1 in floats; infinity times 0 would be NaN.  Floats without a sign are ordered as their bits
  // are; a NaN becomes 14 here, and one again by x - tail.
  const auto sign = simd::bits_as<int32_t>(x) & INT32_MIN, magnitude = simd::bits_as<int32_t>(x) & INT32_MAX;
  const auto clamped = least(magnitude, 0x41600000);  // 14
  const V size = simd::bits_as<float>(clamped), near = simd::bits_as<float>(clamped | sign);
  const V a = size * 0.70710678f;
  const V t = 1.0f / (1.0f + 0.4f * a);
  V p = halves[0] - V{};
  for (int i = 1; i < 10; ++i) p = p * t + halves[i];
  V tail = -a * a;
  simd::exp_to_88(tail);
  tail *= p * t * near;
  x = simd::select(x < 0.0f, tail, x - tail);
}

// x = x / (1 + e^-y).
// Measured errors over all floats from 2^-14 to 128 and their negatives, with AVX-512, AVX2 and the baseline, as shares
// of values of more than 1e-35; smaller ones are off by less than 1e-34:
//                x > 0     -2 < x < 0   below -2
//   gelu_tanh    1.5e-7    5.3e-7       1.6e-5
//   quick_gelu   1.4e-7    2.7e-7       5.0e-6
//   silu         1.2e-7    1.5e-7       1.8e-7
// Below -2 the rounding of y is a larger share of e^-y; SiLU's y is exact.
template <class V>
ATTNKIT_INLINE void gate(V& x, const V& y) {
  V e = -y;
  simd::exp(e);
  x = x / (1.0f + e);
}

// gelu_tanh is x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, where (1 + tanh(y)) / 2 = 1 / (1 + e^-2y).
template <Activation activation, class V>
ATTNKIT_INLINE void activate(V& x) {
  if constexpr (activation == Activation::relu)
    x = simd::select(x < 0.0f, V{}, x);
  else if constexpr (activation == Activation::gelu)
    gelu(x);
  else if constexpr (activation == Activation::gelu_tanh)
    gate(x, 1.59576912f * (x + 0.044715f * x * x * x));
  else if constexpr (activation == Activation::quick_gelu)
    gate(x, 1.702f * x);
  else
    gate(x, x);
}

}  // namespace attnkit::core
