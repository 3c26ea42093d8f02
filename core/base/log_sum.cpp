#include "core/base/log_sum.hpp"

#include <algorithm>
#include <attnkit/kernels/simd.hpp>
#include <cmath>
#include <cstring>

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
  float& result;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    size_t j = 0;
    simd::Vec<Isa> top = -__builtin_inff() - simd::Vec<Isa>{};
    for (; j + simd::kLanes <= scores.size(); j += simd::kLanes) {
      const simd::Vec<Isa> v = simd::at<Isa>(scores.data() + j);
      top = simd::select(v > top, v, top);
    }
    const simd::Vec<Isa> v = tail<Isa>(scores.subspan(j));
    result = simd::largest(simd::select(v > top, v, top));
  }
};

}  // namespace

double log_sum_over(std::span<const float> scores, float top) {
  double result = 0;
  simd::dispatch(SumBody{scores, top, result});
  return result;
}

double log_sum(std::span<const float> scores) {
  float top = 0;
  simd::dispatch(HighestBody{scores, top});
  return top + log_sum_over(scores, top);
}

}  // namespace attnkit::core
