// Numbers in IEEE's 16 bits: one of sign, 5 of exponent, 10 of fraction.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace attnkit::core {

// To the nearest, ties to even; beyond 65,504 infinity.  A NaN stays one.
inline uint16_t round_to_half(float x) {
  const auto bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  uint32_t half = 0x7c00u;
  if (x != x)
    half = 0x7e00u;
  else if (std::fabs(x) < 0x1p-14f)  // zero and subnormals, in units of 2^-24
    half = static_cast<uint32_t>(std::nearbyint(std::fabs(x) * 0x1p24f));
  else if (std::fabs(x) < 65520.0f)
    half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  return static_cast<uint16_t>(sign | half);
}

inline float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = half >> 10 & 31u, fraction = half & 1023u;
  if (exponent == 0) {  // zero and subnormals, in units of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

}  // namespace attnkit::core
