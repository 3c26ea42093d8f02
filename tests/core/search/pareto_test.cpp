#include "core/search/pareto.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "core/search/failure.hpp"

namespace attnkit::search {
namespace {

using Points = std::vector<std::vector<double>>;
using Flags = std::vector<bool>;
using Ranks = std::vector<int>;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

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
}  // namespace attnkit::search
