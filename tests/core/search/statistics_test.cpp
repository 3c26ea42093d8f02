#include "core/search/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/search/failure.hpp"

namespace attnkit::search {
namespace {

// Golden values: SciPy 1.17.1 (binomtest().proportion_ci(method="wilson"), kendalltau) and NumPy 2.4.6 (quantile).
using Values = std::vector<double>;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Statistics, WilsonAgreesWithSciPy) {
  struct Case {
    int64_t right, n;
    double low, high;
  };
  for (const Case& c :
       {Case{0, 10, 0.0, 0.27753279986288926}, Case{10, 10, 0.7224672001371109, 1.0},
        Case{1, 2, 0.09453120573423074, 0.9054687942657693}, Case{7, 20, 0.1811918241010821, 0.5671457233147637},
        Case{1992, 2000, 0.9921265357039623, 0.9979717533930349}, Case{1, 1, 0.20654931437723745, 1.0}}) {
    const Interval interval = wilson(c.right, c.n);
    EXPECT_NEAR(interval.low, c.low, 1e-12) << c.right << " of " << c.n;
    EXPECT_NEAR(interval.high, c.high, 1e-12) << c.right << " of " << c.n;
  }
}

TEST(Statistics, WilsonStaysWithinItsBounds) {
  EXPECT_EQ(wilson(0, 0).low, 0);
  EXPECT_EQ(wilson(0, 0).high, 1);
  EXPECT_EQ(wilson(0, 7).low, 0);
  EXPECT_EQ(wilson(7, 7).high, 1);
  EXPECT_THROW(wilson(8, 7), Failure);
  EXPECT_THROW(wilson(-1, 7), Failure);
}

TEST(Statistics, DeviationDividesByOneLess) {
  EXPECT_NEAR(sample_deviation(Values{2.5, -1, 4, 4, 0.25, 17, 3}), 5.928392137277471, 1e-12);
  // Far from zero a sum of squares would lose the digits that matter.
  EXPECT_NEAR(sample_deviation(Values{1e9 + 1, 1e9 + 2, 1e9 + 3}), 1, 1e-12);
  EXPECT_EQ(sample_deviation(Values{3, 3, 3}), 0);
  EXPECT_TRUE(std::isnan(sample_deviation(Values{3})));
  EXPECT_TRUE(std::isnan(sample_deviation({})));
}

TEST(Statistics, QuantilesAgreeWithNumPy) {
  const Values values{2.5, -1, 4, 4, 0.25, 17, 3};
  const Values at{0, 0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 1}, expected{-1, -0.8125, -0.25, 1.375, 3, 4, 9.2, 17};
  for (size_t i = 0; i < at.size(); ++i) EXPECT_NEAR(quantile(values, at[i]), expected[i], 1e-12) << at[i];
  EXPECT_EQ(median(Values{1, 2, 3, 10}), 2.5);
  EXPECT_EQ(median(Values{7}), 7);
}

TEST(Statistics, QuantilesOfWhatIsNotFinite) {
  EXPECT_TRUE(std::isnan(median({})));
  EXPECT_TRUE(std::isnan(median(Values{1, kNaN, 2})));
  EXPECT_EQ(median(Values{kInfinity, kInfinity}), kInfinity);
  EXPECT_EQ(median(Values{1, 2, kInfinity}), 2);
  EXPECT_THROW(quantile(Values{1}, 1.5), Failure);
  EXPECT_THROW(quantile(Values{1}, kNaN), Failure);
}

TEST(Statistics, KendallAgreesWithSciPy) {
  const Values up{1, 2, 3, 4, 5}, down{5, 4, 3, 2, 1};
  EXPECT_NEAR(kendall_tau_b(up, up), 1, 1e-12);
  EXPECT_NEAR(kendall_tau_b(up, down), -1, 1e-12);
  EXPECT_NEAR(kendall_tau_b(Values{1, 2, 2, 3, 4, 4, 4}, Values{2, 1, 3, 3, 5, 4, 4}), 0.7789808377045201, 1e-12);
  EXPECT_NEAR(kendall_tau_b(Values{12, 2, 1, 12, 2}, Values{1, 4, 7, 1, 0}), -0.4714045207910316, 1e-12);
  EXPECT_NEAR(kendall_tau_b(Values{0.1, 0.4, 0.4, 0.9, 0.3, 0.2}, Values{3, 1, 1, 2, 2, 3}), -0.6172133998483676,
              1e-12);
}

TEST(Statistics, KendallHasNoValueWithoutOrder) {
  EXPECT_TRUE(std::isnan(kendall_tau_b(Values{1, 1, 1}, Values{1, 2, 3})));
  EXPECT_TRUE(std::isnan(kendall_tau_b(Values{1}, Values{1})));
  EXPECT_TRUE(std::isnan(kendall_tau_b({}, {})));
  EXPECT_TRUE(std::isnan(kendall_tau_b(Values{1, kNaN, 2}, Values{1, 2, 3})));
  EXPECT_THROW(kendall_tau_b(Values{1, 2}, Values{1}), Failure);
}

}  // namespace
}  // namespace attnkit::search
