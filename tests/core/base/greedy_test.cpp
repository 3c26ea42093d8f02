#include "core/base/greedy.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

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

TEST(DefaultLimit, GrowsWithTheSource) {
  EXPECT_EQ(default_limit(7, 100), 30);
  EXPECT_EQ(default_limit(70, 100), 100);
}

}  // namespace
}  // namespace attnkit::core
