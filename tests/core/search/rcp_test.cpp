#include "core/search/rcp.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace attnkit::search {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Rcp, ValuesByHand) {
  // 2 / (1 + (28 - 27) / 0.5) = 2 / 3.
  EXPECT_NEAR(*rcp(2, 27, 28, 0.5), 2.0 / 3, 1e-15);
  // Better than the baseline: 1.2 / (1 - 0.5 / 2) = 1.6.
  EXPECT_NEAR(*rcp(1.2, 28.5, 28, 2), 1.6, 1e-15);
  // 2^2 / (1 + 0.5 * 1 / 0.5)^3 = 4 / 8, and times (1 / 0.25)^0.5 = 1.
  const RcpSettings settings{.throughput = 2, .quality = 3, .memory = 0.5, .quality_weight = 0.5};
  EXPECT_NEAR(*rcp(2, 27, 28, 0.5, settings), 0.5, 1e-15);
  EXPECT_NEAR(*rcp_mem(2, 27, 28, 0.5, 0.25, settings), 1, 1e-15);
  EXPECT_NEAR(*rcp_mem(2, 27, 28, 0.5, 0.25), 8.0 / 3, 1e-15);
}

TEST(Rcp, TheBaselineHasOneWhateverTheExponents) {
  const RcpSettings settings{.throughput = 3, .quality = 0.1, .memory = 7, .quality_weight = 5};
  EXPECT_EQ(rcp(1, 99, 99, 0.5, settings), 1);
  EXPECT_EQ(rcp_mem(1, 99, 99, 0.5, 1, settings), 1);
}

TEST(Rcp, FasterBetterAndSmallerAreMore) {
  EXPECT_GT(rcp(2.1, 90, 99, 3), rcp(2, 90, 99, 3));
  EXPECT_GT(rcp(2, 91, 99, 3), rcp(2, 90, 99, 3));
  EXPECT_GT(rcp(2, 100, 99, 3), rcp(2, 99, 99, 3));
  EXPECT_GT(rcp_mem(2, 90, 99, 3, 0.5), rcp_mem(2, 90, 99, 3, 0.6));
}

TEST(Rcp, WeightAndSpreadSayWhatQualityIsWorth) {
  const RcpSettings strict{.quality_weight = 2};
  EXPECT_LT(rcp(2, 90, 99, 3, strict), rcp(2, 90, 99, 3));
  EXPECT_GT(rcp(2, 90, 99, 6), rcp(2, 90, 99, 3));
  const RcpSettings careless{.quality_weight = 0};
  EXPECT_EQ(rcp(2, 90, 99, 3, careless), 2);
}

TEST(Rcp, NoValueUnlessTheDenominatorIsPositive) {
  EXPECT_FALSE(rcp(2, 102, 99, 3));
  EXPECT_FALSE(rcp(2, 103, 99, 3));
  EXPECT_TRUE(rcp(2, 101.9, 99, 3));
  EXPECT_FALSE(rcp_mem(2, 102, 99, 3, 0.5));
}

TEST(Rcp, NoValueWithoutASpreadUnlessItCancelsOut) {
  for (double bad : {0.0, -1.0, kNaN, kInfinity}) {
    EXPECT_FALSE(rcp(2, 90, 99, bad)) << bad;
    EXPECT_EQ(rcp(2, 99, 99, bad), 2) << bad;
  }
}

TEST(Rcp, NoValueOfWhatIsNotPositiveAndFinite) {
  for (double bad : {0.0, -1.0, kNaN, kInfinity}) {
    EXPECT_FALSE(rcp(bad, 90, 99, 3)) << bad;
    EXPECT_FALSE(rcp_mem(2, 90, 99, 3, bad)) << bad;
  }
  for (double bad : {kNaN, kInfinity, -kInfinity}) {
    EXPECT_FALSE(rcp(2, bad, 99, 3)) << bad;
    EXPECT_FALSE(rcp(2, 99, bad, 3)) << bad;
    EXPECT_FALSE(rcp(2, bad, bad, 3)) << bad;
  }
  EXPECT_FALSE(rcp(1e200, 99, 99, 3, {.throughput = 2}));
}

}  // namespace
}  // namespace attnkit::search
