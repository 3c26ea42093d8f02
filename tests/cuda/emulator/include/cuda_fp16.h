// Stands in for CUDA's header of this name: the type and its conversions.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};
using half = __half;

// To the nearest, ties to even; past the largest number, infinity.
inline __half __float2half_rn(float x) {
  const uint32_t all = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(all >> 16 & 0x8000u);
  if (std::isnan(x)) return {static_cast<uint16_t>(sign | 0x7E00u)};
  const float size = std::fabs(x);
  if (size >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7C00u)};
  // Steps between halves are 2^-24 below 2^-14 and grow by powers of two above: nearbyint rounds in steps of 1.
  const int exponent = size < 0x1p-14f ? -14 : static_cast<int>(all >> 23 & 255) - 127;
  const auto per_one = std::bit_cast<double>(static_cast<uint64_t>(1023 + 10 - exponent) << 52);
  const auto steps = static_cast<uint32_t>(std::nearbyint(double{size} * per_one));
  return {static_cast<uint16_t>(sign | (steps + (static_cast<uint32_t>(exponent + 14) << 10)))};
}
inline float __half2float(__half h) {
  const uint32_t exponent = h.bits >> 10 & 31, fraction = h.bits & 1023, sign = (h.bits & 0x8000u) << 16;
  if (exponent == 0)
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f));
  return std::bit_cast<float>(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}
