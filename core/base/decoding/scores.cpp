#include "core/base/decoding/scores.hpp"

#include <algorithm>
#include <attnkit/kernels/simd.hpp>
#include <cmath>
#include <cstring>
#include <limits>

namespace attnkit::core {
namespace {

// The last lanes, filled up with what neither the highest nor the sum notices.
template <class Isa>
ATTNKIT_INLINE simd::Vec<Isa> tail(std::span<const float> rest) {
  float lanes[simd::kLanes];
  std::fill(lanes, lanes + simd::kLanes, -__builtin_inff());
  std::memcpy(lanes, rest.data(), rest.size_bytes());
  return simd::at<Isa>(lanes);
}

// The highest scores are counted apart: a sure model's other ones add up to so little that 1 + sum would lose it in
// float.  Blocks are added up in double, so that a wide row loses nothing either.
struct SumBody {
  std::span<const float> scores;
  float top;
  double& result;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    constexpr int64_t block = 64 * simd::kLanes;
    const auto width = static_cast<int64_t>(scores.size());
    const float* const row = scores.data();
    double highest = 0, others = 0;
    int64_t j = 0;
    while (j + simd::kLanes <= width) {
      simd::Vec<Isa> tops{}, rest{};
      for (const int64_t end = std::min(width - simd::kLanes, j + block); j <= end; j += simd::kLanes)
        add(simd::at<Isa>(row + j), tops, rest);
      highest += static_cast<double>(simd::sum(tops));
      others += static_cast<double>(simd::sum(rest));
    }
    simd::Vec<Isa> tops{}, rest{};
    add(tail<Isa>(scores.subspan(static_cast<size_t>(j))), tops, rest);
    highest += static_cast<double>(simd::sum(tops));
    others += static_cast<double>(simd::sum(rest));
    result = std::log(highest) + std::log1p(others / highest);
  }

  template <class V>
  ATTNKIT_INLINE void add(const V& v, V& tops, V& rest) const {
    V e = v - top;
    simd::exp(e);
    tops += simd::select(v == top, 1.0f - V{}, V{});
    rest += simd::select(v == top, V{}, e);
  }
};

struct HighestBody {
  std::span<const float> scores;
  float& result;  // NaN where a score is

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    size_t j = 0;
    simd::Vec<Isa> top = -__builtin_inff() - simd::Vec<Isa>{}, odd{};
    for (; j + simd::kLanes <= scores.size(); j += simd::kLanes) take(simd::at<Isa>(scores.data() + j), top, odd);
    take(tail<Isa>(scores.subspan(j)), top, odd);
    result = simd::sum(odd) > 0 ? __builtin_nanf("") : simd::largest(top);
  }

  template <class V>
  ATTNKIT_INLINE void take(const V& v, V& top, V& odd) const {
    top = simd::select(v > top, v, top);
    odd = simd::select(v == v, odd, 1.0f - V{});
  }
};

float highest(std::span<const float> scores) {
  float top = 0;
  simd::dispatch(HighestBody{scores, top});
  return top;
}

}  // namespace

std::optional<int32_t> best_token(std::span<const float> scores) {
  if (scores.empty()) return std::nullopt;
  const float top = highest(scores);
  if (std::isnan(top)) return std::nullopt;
  constexpr size_t block = 64;
  for (size_t from = 0;; from += block) {
    const std::span<const float> some = scores.subspan(from, std::min(block, scores.size() - from));
    bool any = false;
    for (const float score : some) any |= score == top;
    if (any) return static_cast<int32_t>(from + static_cast<size_t>(std::ranges::find(some, top) - some.begin()));
  }
}

double log_sum_over(std::span<const float> scores, float top) {
  if (!std::isfinite(top)) return std::numeric_limits<double>::quiet_NaN();
  double result = 0;
  simd::dispatch(SumBody{scores, top, result});
  return result;
}

double log_sum(std::span<const float> scores) {
  const float top = highest(scores);
  return top + log_sum_over(scores, top);
}

}  // namespace attnkit::core
