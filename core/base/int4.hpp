// Numbers in 4 bits: 32 of them share a scale.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace attnkit::core {

constexpr int64_t int4_block = 32;

inline int64_t int4_blocks(int64_t numbers) { return (numbers + int4_block - 1) / int4_block; }

// Rounds a block of n numbers to q times the scale that it returns, q from -8 to 7: what is furthest from zero becomes
// -8, so the scale has its exponent and bits, and rounding again changes nothing.  The scale is NaN unless all are
// finite.
inline float round_to_int4(const float* x, int64_t n, int8_t* q) {
  float furthest = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    finite &= std::isfinite(x[i]);
    if (std::fabs(x[i]) > std::fabs(furthest)) furthest = x[i];
  }
  const float scale = furthest / -8.0f, inverse = 1.0f / scale;
  const bool rounds = finite && std::isfinite(inverse);
  constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52: rounds to an integer
  for (int64_t i = 0; i < n; ++i) {
    const float product = x[i] * inverse;
    q[i] = rounds ? static_cast<int8_t>(std::clamp(double{product} + shift - shift, -8.0, 7.0)) : int8_t{0};
  }
  return finite ? scale : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace attnkit::core
