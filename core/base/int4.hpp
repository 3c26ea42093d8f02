// Numbers in 4 bits: 32 of them share a scale, and an offset where they have one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace attnkit::core {

constexpr int64_t int4_block = 32;

inline int64_t int4_blocks(int64_t numbers) { return (numbers + int4_block - 1) / int4_block; }

// A block stands for q scale + offset, q from -8 to 7.
struct Int4Scale {
  float scale, offset;
};

// Whether a whole block is of at most sixteen evenly spaced numbers, as those of GGUF's Q4_1 and Q4_K are; then q and
// these.
inline bool is_evenly_spaced(const float* x, int8_t* q, Int4Scale& made) {
  constexpr float nearly = 1e-4f;  // of a step: more than what the products and sums that made them were rounded by
  const auto is_whole = [](float n) { return std::fabs(n - std::nearbyint(n)) <= nearly; };
  const float low = *std::min_element(x, x + int4_block), high = *std::max_element(x, x + int4_block);
  const float* between = std::find_if(x, x + int4_block, [&](float n) { return n != low && n != high; });
  const float first = between < x + int4_block ? (*between - low) / (high - low) : 0.0f;
  for (int steps = 15; steps > 0; --steps) {
    if (!is_whole(first * static_cast<float>(steps))) continue;  // nearly all, of other numbers
    const float step = (high - low) / static_cast<float>(steps), inverse = 1.0f / step;
    if (!std::isfinite(inverse)) return false;
    if (!std::all_of(x, x + int4_block, [&](float n) { return is_whole((n - low) * inverse); })) continue;
    for (int64_t i = 0; i < int4_block; ++i) q[i] = static_cast<int8_t>(std::nearbyint((x[i] - low) * inverse) - 8);
    made = {step, low + 8 * step};
    return true;
  }
  return false;
}

// Rounds a block of n numbers.  Numbers that are evenly spaced stay what they are.  Others have no offset: what is
// furthest from zero becomes -8, so the scale has its exponent and bits, and rounding again changes nothing.  The scale
// is NaN unless all are finite.
inline Int4Scale round_to_int4(const float* x, int64_t n, int8_t* q) {
  float furthest = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    finite &= std::isfinite(x[i]);
    if (std::fabs(x[i]) > std::fabs(furthest)) furthest = x[i];
  }
  const float scale = furthest / -8.0f, inverse = 1.0f / scale;
  const bool rounds = finite && std::isfinite(inverse);
  constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52: rounds to an integer
  bool same = true;
  for (int64_t i = 0; i < n; ++i) {
    const float product = x[i] * inverse;
    q[i] = rounds ? static_cast<int8_t>(std::clamp(double{product} + shift - shift, -8.0, 7.0)) : int8_t{0};
    same &= scale * static_cast<float>(q[i]) == x[i];
  }
  if (Int4Scale spaced; rounds && !same && n == int4_block && is_evenly_spaced(x, q, spaced)) return spaced;
  return {finite ? scale : std::numeric_limits<float>::quiet_NaN(), 0};
}

}  // namespace attnkit::core
