#include "core/search/quality.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

QualitySums four_examples() {
  QualitySums sums;
  sums += sums_of_example(true, 5, 5, 0.5);
  sums += sums_of_example(false, 8, 7, 1.6);
  sums += sums_of_example(true, 3, 3, 0.2);
  sums += sums_of_example(false, 10, 7, 4.0);
  return sums;
}

TEST(Quality, ValuesOfFourLists) {
  const QualitySums sums = four_examples();
  EXPECT_EQ(sums.examples, 4);
  EXPECT_EQ(value_of(Metric::exact, sums), 50);
  EXPECT_NEAR(value_of(Metric::accuracy, sums), 100.0 * 22 / 26, 1e-12);
  EXPECT_NEAR(value_of(Metric::perplexity, sums), std::exp(6.3 / 26), 1e-12);
}

// Wilson: SciPy 1.17.1.  Ratios: standard errors from the residuals y - r x of the four examples, sqrt(4/3 * their sum
// of squares) / 26, with NumPy: 0.0768471784567186 for right tokens, 0.0817121700079136 for nll.
TEST(Quality, IntervalsOfFourLists) {
  const QualitySums sums = four_examples();
  EXPECT_NEAR(interval_of(Metric::exact, sums).low, 15.003898915214953, 1e-10);
  EXPECT_NEAR(interval_of(Metric::exact, sums).high, 84.99610108478505, 1e-10);
  EXPECT_NEAR(interval_of(Metric::accuracy, sums).low, 69.55361440651554, 1e-10);
  EXPECT_NEAR(interval_of(Metric::accuracy, sums).high, 99.67715482425369, 1e-10);
  EXPECT_NEAR(interval_of(Metric::perplexity, sums).low, 1.0856238318467801, 1e-12);
  EXPECT_NEAR(interval_of(Metric::perplexity, sums).high, 1.495500005285024, 1e-12);
}

TEST(Quality, SumsAddUpInAnyGrouping) {
  QualitySums left = sums_of_example(true, 5, 5, 0.5), right = sums_of_example(false, 8, 7, 1.5);
  right += sums_of_example(false, 10, 7, 4.0);
  left += right;
  QualitySums one_by_one = sums_of_example(true, 5, 5, 0.5);
  one_by_one += sums_of_example(false, 8, 7, 1.5);
  one_by_one += sums_of_example(false, 10, 7, 4.0);
  EXPECT_EQ(left, one_by_one);
}

TEST(Quality, NothingHasNoValue) {
  for (Metric metric : {Metric::exact, Metric::accuracy, Metric::perplexity}) {
    EXPECT_TRUE(std::isnan(value_of(metric, {})));
    EXPECT_TRUE(std::isnan(interval_of(metric, {}).low));
    EXPECT_TRUE(std::isnan(interval_of(metric, {}).high));
  }
  EXPECT_TRUE(std::isnan(interval_of(Metric::accuracy, sums_of_example(true, 5, 5, 0.5)).low));
  EXPECT_TRUE(std::isnan(interval_of(Metric::perplexity, sums_of_example(true, 5, 5, 0.5)).high));
}

TEST(Quality, AccuracyStaysAPercentage) {
  QualitySums sums = sums_of_example(true, 20, 20, 0);
  sums += sums_of_example(false, 20, 1, 9);
  EXPECT_EQ(interval_of(Metric::accuracy, sums).high, 100);
  EXPECT_EQ(interval_of(Metric::accuracy, sums).low, 0);
}

TEST(Quality, EqualListsHaveNoWidthInSpiteOfRounding) {
  QualitySums sums;
  for (int i = 0; i < 1000; ++i) sums += sums_of_example(false, 7, 6, 0.1);
  const Interval interval = interval_of(Metric::perplexity, sums);
  EXPECT_NEAR(interval.low, std::exp(0.1 / 7), 1e-6);
  EXPECT_NEAR(interval.high, std::exp(0.1 / 7), 1e-6);
}

TEST(Quality, BleuIsNotMadeFromSums) {
  EXPECT_THROW(value_of(Metric::bleu, four_examples()), Failure);
  EXPECT_THROW(interval_of(Metric::bleu, four_examples()), Failure);
}

TEST(Quality, SumsGoThroughJson) {
  const QualitySums sums = four_examples();
  EXPECT_EQ(nlohmann::json::parse(nlohmann::json(sums).dump()).get<QualitySums>(), sums);
  QualitySums broken = sums;
  broken.nll = kInfinity;
  const auto read = nlohmann::json::parse(nlohmann::json(broken).dump()).get<QualitySums>();
  EXPECT_TRUE(std::isnan(read.nll));
  EXPECT_TRUE(std::isnan(value_of(Metric::perplexity, read)));
  EXPECT_THROW(nlohmann::json::parse(R"({"lists": 1})").get<QualitySums>(), nlohmann::json::exception);
}

TEST(Quality, ABrokenListBreaksTheInterval) {
  QualitySums sums = four_examples();
  sums += sums_of_example(false, 5, 0, kNaN);
  EXPECT_TRUE(std::isnan(interval_of(Metric::perplexity, sums).low));
}

TEST(Quality, ScoresRiseAsPerplexityFalls) {
  EXPECT_NEAR(score_of(Metric::perplexity, std::exp(0.25)), -0.25, 1e-12);
  EXPECT_GT(score_of(Metric::perplexity, 1.1), score_of(Metric::perplexity, 1.2));
  for (Metric metric : {Metric::exact, Metric::bleu, Metric::accuracy}) EXPECT_EQ(score_of(metric, 97.5), 97.5);
}

TEST(Quality, RatiosAreBelowOneForWorse) {
  EXPECT_EQ(ratio_of(Metric::perplexity, 4, 2), 0.5);
  EXPECT_EQ(ratio_of(Metric::exact, 45, 90), 0.5);
  EXPECT_EQ(ratio_of(Metric::bleu, 0, 0), 1);
  EXPECT_EQ(ratio_of(Metric::exact, 5, 0), kInfinity);
  EXPECT_EQ(ratio_of(Metric::perplexity, kInfinity, 2), 0);
  EXPECT_TRUE(std::isnan(ratio_of(Metric::accuracy, kNaN, 90)));
}

}  // namespace
}  // namespace attnkit::core::search
