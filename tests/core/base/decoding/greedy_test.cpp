#include "core/base/decoding/greedy.hpp"

#include <gtest/gtest.h>

#include <attnkit/kernels/random.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "core/base/decoding/scores.hpp"

namespace attnkit::core {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();

TEST(BestToken, IsTheFirstOfTheHighest) {
  EXPECT_EQ(best_token(std::vector<float>{-3, 2, 1, 2}), 1);
  EXPECT_EQ(best_token(std::vector<float>{-inf, -inf}), 0);
  EXPECT_EQ(best_token(std::vector<float>{-inf, -9, inf}), 2);
  EXPECT_EQ(best_token({}), std::nullopt);
}

TEST(BestToken, IsNoneBesideANanWhereverItStands) {
  for (size_t at = 0; at < 7; ++at) {
    std::vector<float> scores = {0, 1, 2, 9, 2, 1, 0};
    scores[at] = nan;
    EXPECT_EQ(best_token(scores), std::nullopt) << at;
  }
}

// Rows wider than vectors, than blocks, and what is left of them.
TEST(Scores, OfAnyWidthAreThoseTakenOneByOne) {
  Random random(7, 0);
  for (size_t width = 1; width < 3000; width += 1 + width / 7) {
    std::vector<float> scores(width);
    for (float& s : scores) s = std::round(static_cast<float>(random.normal()) * 40) / 8;  // many are equal
    const auto top = std::max_element(scores.begin(), scores.end());
    EXPECT_EQ(best_token(scores), top - scores.begin()) << width;
    double sum = 0;
    for (const float s : scores) sum += std::exp(static_cast<double>(s) - *top);
    EXPECT_NEAR(log_sum(scores), *top + std::log(sum), 1e-6) << width;
    EXPECT_NEAR(log_sum_over(scores, *top), std::log(sum), 1e-6) << width;
    for (const size_t at : {size_t{0}, width / 2, width - 1}) {
      std::vector<float> broken = scores;
      broken[at] = nan;
      EXPECT_EQ(best_token(broken), std::nullopt) << width;
      EXPECT_TRUE(std::isnan(log_sum(broken))) << width;
      broken[at] = -inf;  // a token that may not come
      broken.erase(broken.begin() + static_cast<std::ptrdiff_t>(at));
      if (broken.empty()) continue;
      std::vector<float> suppressed = scores;
      suppressed[at] = -inf;
      EXPECT_NEAR(log_sum(suppressed), log_sum(broken), 1e-6) << width;
    }
  }
  for (const float top : {inf, -inf, nan}) {
    EXPECT_TRUE(std::isnan(log_sum_over(std::vector<float>{top, top}, top))) << top;
    EXPECT_TRUE(std::isnan(log_sum(std::vector<float>{top, -inf}))) << top;
  }
  // A sure model: the others are not lost beside 1.
  EXPECT_NEAR(log_sum_over(std::vector<float>{30, 0, 0}, 30) / std::log1p(2 * std::exp(-30.0)), 1, 1e-6);
}

TEST(DefaultLimit, GrowsWithTheSource) {
  EXPECT_EQ(default_limit(7, 100), 30);
  EXPECT_EQ(default_limit(70, 100), 100);
}

}  // namespace
}  // namespace attnkit::core
