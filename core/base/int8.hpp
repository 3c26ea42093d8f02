// Numbers in 8 bits: those of an output share a scale.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace attnkit::core {

// Rounds n numbers to q times the scale that it returns, q from -127 to 127, ties to even.  The scale is NaN unless all
// are finite.
inline float round_to_int8(const float* x, int64_t n, int8_t* q) {
  // Magnitudes are ordered as the integers of their bits are; infinity and NaN come last.
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::bit_cast<uint32_t>(x[i]) & INT32_MAX);
  const float largest = std::bit_cast<float>(most), inverse = largest > 0 ? 127.0f / largest : 0.0f;
  const bool finite = std::isfinite(largest), rounds = finite && std::isfinite(inverse);
  constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52: rounds to an integer; the product is exact
  for (int64_t i = 0; i < n; ++i)
    q[i] = rounds ? static_cast<int8_t>(double{x[i]} * inverse + shift - shift) : int8_t{0};
  return finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace attnkit::core
