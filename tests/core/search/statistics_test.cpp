#include "core/search/statistics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "core/conformance/array.hpp"
#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

// Golden values: SciPy 1.17.1 (binomtest().proportion_ci(method="wilson")) and NumPy 2.4.6 (quantile).
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

TEST(Rcp, ValuesByHand) {
  // 2 / (1 + (28 - 27) / 0.5) = 2 / 3.
  EXPECT_NEAR(*rcp(2, 27, 28, 0.5), 2.0 / 3, 1e-15);
  // Better than the baseline: 1.2 / (1 - 0.5 / 2) = 1.6.
  EXPECT_NEAR(*rcp(1.2, 28.5, 28, 2), 1.6, 1e-15);
  // 2^2 / (1 + 0.5 * 1 / 0.5)^3 = 4 / 8; the mean of 2^2 and (1 / 0.25)^0.5 over 8.
  const RcpSettings settings{.throughput = 2, .quality = 3, .memory = 0.5, .quality_weight = 0.5};
  EXPECT_NEAR(*rcp(2, 27, 28, 0.5, settings), 0.5, 1e-15);
  EXPECT_NEAR(*rcp_mem(2, 27, 28, 0.5, 0.25, settings), 3.0 / 8, 1e-15);
  EXPECT_NEAR(*rcp_mem(2, 27, 28, 0.5, 0.25), 1, 1e-15);
}

// Figures of LeaPformer (Agostinelli, Hong and Chen, ICML 2024): Table 1 has accuracies, 2 throughput, 3 the scores.
struct Paper {
  nlohmann::json json = [] {
    std::ifstream file(ATTNKIT_SOURCE_DIR "/tests/core/search/golden/leapformer.json");
    return nlohmann::json::parse(file);
  }();

  const nlohmann::json& rows(const char* table) const { return json["tables"][table]["rows"]; }
  double cell(const char* table, const std::string& name, const char* column) const {
    for (const nlohmann::json& row : rows(table))
      if (row["name"] == name) return row[column];
    ADD_FAILURE() << "table " << table << " has no " << name;
    return kNaN;
  }
  double throughput(const std::string& name) const {
    return cell("2", name, "thrpt_4k") / cell("2", softmax, "thrpt_4k");
  }
  double accuracy(const std::string& name) const { return cell("1", name, "avg"); }
  Values averages() const {
    Values all;
    for (const nlohmann::json& row : rows("1")) all.push_back(row["avg"]);
    return all;
  }
  double deviation_from_table3(double spread) const {
    double largest = 0;
    for (const nlohmann::json& row : rows("3")) {
      const std::string name = row["name"];
      const double score = rcp(throughput(name), accuracy(name), accuracy(softmax), spread).value();
      largest = conformance::worse(largest, std::abs(score - row["rcp"].get<double>()));
    }
    return largest;
  }

  const std::string softmax = "Softmax Attn.";
};

TEST(Rcp, ReproducesAllTenRowsOfLeaPformersTable3) {
  const Paper paper;
  ASSERT_EQ(paper.rows("1").size(), 11u);
  ASSERT_EQ(paper.rows("3").size(), 10u);
  EXPECT_LE(paper.deviation_from_table3(sample_deviation(paper.averages())), 0.005);
}

// The paper names a standard deviation and says neither its divisor nor of which rows.
TEST(Rcp, NoOtherDeviationReproducesTable3) {
  const Paper paper;
  const Values all = paper.averages();
  ASSERT_EQ(all.front(), paper.accuracy(paper.softmax));
  const Values without_softmax(all.begin() + 1, all.end());
  const auto population = [](const Values& values) {
    const auto n = static_cast<double>(values.size());
    return sample_deviation(values) * std::sqrt((n - 1) / n);
  };
  for (double other : {population(all), sample_deviation(without_softmax), population(without_softmax)})
    EXPECT_GT(paper.deviation_from_table3(other), 0.01) << other;
}

// Memory is in no table.  What Table 3 implies for cosFormer gives the value of appendix A.4 for a larger cosFormer, if
// that is as fast and has as much memory.
TEST(Rcp, MemIsConsistentWithAppendixA4) {
  const Paper paper;
  const std::string name = "cosFormer";
  const double spread = sample_deviation(paper.averages()), softmax = paper.accuracy(paper.softmax),
               throughput = paper.throughput(name), printed = paper.cell("3", name, "rcp_mem"),
               plain = rcp(throughput, paper.accuracy(name), softmax, spread).value(),
               memory = 1 / (throughput * (2 * printed / plain - 1));
  EXPECT_NEAR(*rcp_mem(throughput, paper.accuracy(name), softmax, spread, memory), printed, 1e-9);
  const nlohmann::json& larger = paper.json["rcp"]["text_values"][0];
  ASSERT_EQ(larger["name"], "cosFormer (1.05x parameters)");
  EXPECT_NEAR(*rcp_mem(throughput, paper.cell("8", larger["name"], "avg"), softmax, spread, memory),
              larger["rcp_mem"].get<double>(), 0.015);
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

using Flags = std::vector<bool>;
using Ranks = std::vector<int>;

Points random_points(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Points points(n, std::vector<double>(3));
  // Few levels make ties and duplicates.
  for (auto& point : points)
    for (double& value : point) value = static_cast<double>(random() % 6);
  return points;
}

bool dominates(const std::vector<double>& a, const std::vector<double>& b) {
  bool is_higher = false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] < b[i]) return false;
    is_higher |= a[i] > b[i];
  }
  return is_higher;
}

TEST(Pareto, AFrontByHand) {
  const Points points{{3, 1}, {2, 2}, {1, 3}, {1, 2}, {2, 1}, {1, 1}};
  EXPECT_EQ(nondominated(points), (Flags{true, true, true, false, false, false}));
  EXPECT_EQ(fronts(points), (Ranks{0, 0, 0, 1, 1, 2}));
}

TEST(Pareto, DuplicatesAllStay) {
  EXPECT_EQ(nondominated(Points{{1, 2}, {1, 2}, {1, 1}, {1, 1}}), (Flags{true, true, false, false}));
  EXPECT_EQ(fronts(Points{{0.0, 1}, {-0.0, 1}}), (Ranks{0, 0}));
}

TEST(Pareto, NaNIsDominatedAndDominatesNothing) {
  const Points points{{9, kNaN}, {1, 1}, {kNaN, kNaN}, {0, 0}, {-kInfinity, -kInfinity}};
  EXPECT_EQ(nondominated(points), (Flags{false, true, false, false, false}));
  EXPECT_EQ(fronts(points), (Ranks{3, 0, 3, 1, 2}));
  EXPECT_EQ(fronts(Points{{kNaN, 5}}), (Ranks{1}));
}

TEST(Pareto, NothingHasNoFront) {
  EXPECT_TRUE(nondominated({}).empty());
  EXPECT_TRUE(fronts({}).empty());
  EXPECT_TRUE(crowding({}).empty());
  EXPECT_THROW(fronts(Points{{1, 2}, {1}}), Failure);
}

TEST(Pareto, FrontsPeelOffOneAfterTheOther) {
  Points left = random_points(150, 11);
  const Points all = left;
  const Ranks ranks = fronts(all);
  const int last = *std::max_element(ranks.begin(), ranks.end());
  ASSERT_GT(last, 3);
  for (int rank = 0; rank <= last; ++rank) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (ranks[i] < rank) continue;
      const bool is_dominated =
          std::any_of(left.begin(), left.end(), [&](const auto& other) { return dominates(other, all[i]); });
      EXPECT_EQ(is_dominated, ranks[i] > rank) << i;
    }
    left.clear();
    for (size_t i = 0; i < all.size(); ++i)
      if (ranks[i] > rank) left.push_back(all[i]);
  }
}

TEST(Pareto, FrontsFollowTheirPoints) {
  Points points = random_points(60, 5);
  Ranks ranks = fronts(points);
  std::reverse(points.begin(), points.end());
  std::reverse(ranks.begin(), ranks.end());
  EXPECT_EQ(fronts(points), ranks);
}

TEST(Pareto, CrowdingByHand) {
  // Ranges 10 and 8: the second has (4 - 0) / 10 + (8 - 3) / 8, the third (10 - 1) / 10 + (6 - 0) / 8.
  const std::vector<double> distance = crowding(Points{{0, 8}, {1, 6}, {4, 3}, {10, 0}});
  EXPECT_EQ(distance[0], kInfinity);
  EXPECT_NEAR(distance[1], 0.4 + 0.625, 1e-12);
  EXPECT_NEAR(distance[2], 0.9 + 0.75, 1e-12);
  EXPECT_EQ(distance[3], kInfinity);
}

TEST(Pareto, CrowdingOfConstantInfiniteAndMissingValues) {
  EXPECT_EQ(crowding(Points{{1, 2}, {2, 1}}), (std::vector<double>{kInfinity, kInfinity}));
  EXPECT_EQ(crowding(Points{{1, 2}, {1, 2}, {1, 2}}), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(crowding(Points{{0, 5}, {1, 5}, {4, 5}})[1], 1);
  EXPECT_EQ(crowding(Points{{0}, {1}, {kInfinity}})[1], 0);
  EXPECT_EQ(crowding(Points{{0}, {kNaN}, {1}, {4}}), (std::vector<double>{kInfinity, 0, 1, kInfinity}));
}

}  // namespace
}  // namespace attnkit::core::search
