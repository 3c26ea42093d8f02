// Stands in for CUDA's header of this name: the type and its conversions.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

struct __nv_bfloat16 {
  uint16_t bits;
};

// To the nearest, ties to even.
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const uint32_t all = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {0x7FFF};
  return {static_cast<uint16_t>((all + 0x7FFFu + (all >> 16 & 1)) >> 16)};
}
inline float __bfloat162float(__nv_bfloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
