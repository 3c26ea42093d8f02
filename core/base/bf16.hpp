// Numbers in 16 bits: floats without their last 16.
#pragma once

#include <bit>
#include <cstdint>

namespace attnkit::core {

// To the nearest, ties to even.  A NaN stays one.
inline uint16_t round_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((x == x ? bits + 0x7fff + (bits >> 16 & 1) : bits | 0x400000) >> 16);
}

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

}  // namespace attnkit::core
