#include "core/search/surrogate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/core/search/synthetic/compare.hpp"

namespace attnkit::core::search {
namespace {

std::vector<Placement> some_placements(const Space& space, size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::set<Placement> found;
  while (found.size() < n) found.insert(placement_at(space, units_of(space, true), random() % size_of(space, true)));
  return {found.begin(), found.end()};
}

// Effects of single choices and of neighbours, without noise.
double in_pairs(const Placement& placement) {
  double sum = 5;
  for (size_t s = 0; s < placement.size(); ++s) {
    sum += noise(s, placement[s], 1);
    if (s > 0) sum += noise(s, placement[s] + 8 * placement[s - 1], 2);
  }
  return sum;
}

std::vector<double> values_of(const std::vector<Placement>& placements) {
  std::vector<double> values;
  for (const Placement& placement : placements) values.push_back(in_pairs(placement));
  return values;
}

double mean_of(const Surrogate& surrogate, const Placement& placement) {
  const auto by_choice = surrogate.draw(1, 0).by_choice(placement, {0, 1}, 4);
  return by_choice[static_cast<size_t>(placement[0])];
}

double deviation_of(const std::vector<double>& values) { return sample_deviation(values); }

TEST(Surrogate, LearnsSinglesAndPairsFromAFewOfManyPlacements) {
  const Space space = space_of(2, 4);  // 4,096 placements
  const std::vector<Placement> seen = some_placements(space, 300, 1), others = some_placements(space, 200, 2);
  const Surrogate surrogate(seen, values_of(seen));
  std::vector<double> predicted;
  for (const Placement& placement : others) predicted.push_back(mean_of(surrogate, placement));
  const HeldOut error = compare(predicted, values_of(others));
  EXPECT_LT(error.rmse, 0.15 * deviation_of(values_of(others)));
  EXPECT_GT(error.tau, 0.9);
}

// The closed form is what leaving one out and fitting the others gives, where the shape stays the same.
TEST(Surrogate, HeldOutIsWhatTheOthersSay) {
  const Space space = space_of(2, 4);
  const std::vector<Placement> seen = some_placements(space, 60, 3);
  const std::vector<double> values = values_of(seen), held_out = Surrogate(seen, values).held_out();
  for (size_t i : {0, 17, 59}) {
    std::vector<Placement> others = seen;
    std::vector<double> of_others = values;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    of_others.erase(of_others.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NEAR(mean_of(Surrogate(others, of_others), seen[i]), held_out[i], 0.05 * deviation_of(values));
  }
}

TEST(Surrogate, ErrorOfWhatIsHeldOutIsThatOfNewPlacements) {
  const Space space = space_of(2, 4);
  const std::vector<Placement> seen = some_placements(space, 120, 4), others = some_placements(space, 400, 5);
  const Surrogate surrogate(seen, values_of(seen));
  std::vector<double> predicted;
  for (const Placement& placement : others) predicted.push_back(mean_of(surrogate, placement));
  const double held_out = compare(surrogate.held_out(), values_of(seen)).rmse;
  EXPECT_NEAR(held_out / compare(predicted, values_of(others)).rmse, 1, 0.25);
}

TEST(Surrogate, ByChoiceIsTheValueOfThePlacementWithThatChoice) {
  const Space space = space_of(2, 4);
  const std::vector<Placement> seen = some_placements(space, 50, 6);
  const Surrogate surrogate(seen, values_of(seen));
  for (double boldness : {0.0, 1.0}) {
    const Surrogate::Draw draw = surrogate.draw(7, boldness);
    const Placement placement = {3, 2, 1, 0, 1, 2};
    for (Unit unit : {Unit{1, 2}, Unit{2, 4}, Unit{0, 6}}) {
      const std::vector<double> values = draw.by_choice(placement, unit, 4);
      for (int c = 0; c < 4; ++c) {
        const Placement changed = with_choice(placement, unit, c);
        EXPECT_NEAR(values[static_cast<size_t>(c)], draw.by_choice(changed, {5, 6}, 4)[static_cast<size_t>(changed[5])],
                    1e-9);
      }
    }
  }
}

// Draws keep to what was measured and differ in what was not.
TEST(Surrogate, DrawsAreBoldWhereNothingWasMeasured) {
  const Space space = space_of(3, 4);
  const std::vector<Placement> seen = some_placements(space, 40, 8);
  const Surrogate surrogate(seen, values_of(seen));
  const auto spread_at = [&](const Placement& placement) {
    std::vector<double> drawn;
    for (uint64_t seed = 0; seed < 200; ++seed)
      drawn.push_back(surrogate.draw(seed, 1).by_choice(placement, {0, 1}, 4)[static_cast<size_t>(placement[0])]);
    return deviation_of(drawn);
  };
  EXPECT_LT(spread_at(seen[3]) * 2, spread_at(some_placements(space, 1, 99).front()));
}

TEST(Surrogate, IsFiniteWhateverTheValues) {
  const auto expect_finite = [](const std::vector<Placement>& placements, const std::vector<double>& values) {
    const Surrogate surrogate(placements, values);
    for (double v : surrogate.held_out()) EXPECT_TRUE(std::isfinite(v));
    for (double v : surrogate.draw(1, 1).by_choice(placements[0], {0, 1}, 4)) EXPECT_TRUE(std::isfinite(v));
  };
  const std::vector<Placement> many = some_placements(space_of(2, 4), 20, 9);
  expect_finite({many[0]}, {0.5});
  expect_finite({many[0], many[1]}, {1e-300, 2e-300});
  expect_finite(many, std::vector<double>(20, 0.99));
  expect_finite(many, std::vector<double>(20, 0));
  expect_finite({{0}, {1}, {3}}, {0.1, 0.2, 0.3});  // one block has no pairs
  std::vector<double> wide(20);
  std::iota(wide.begin(), wide.end(), -1e12);
  expect_finite(many, wide);
}

TEST(Climb, EndsWhereNoChangeOfOneUnitIsHigher) {
  const Space space = space_of(2, 4);
  const std::vector<Unit> units = units_of(space, true);
  const std::vector<Placement> seen = some_placements(space, 80, 10);
  const Surrogate surrogate(seen, values_of(seen));
  const Surrogate::Draw draw = surrogate.draw(1, 1);
  const Climb found = climb(space, units, seen[0], {&draw, 1}, [](std::span<const double> v) { return v[0]; });
  for (Unit unit : units)
    for (double v : draw.by_choice(found.top, unit, 4)) EXPECT_LE(v, found.score + 1e-9);
  ASSERT_EQ(found.beside.size(), 6u * 4);
  EXPECT_TRUE(std::ranges::is_sorted(found.beside, std::ranges::greater(), [](const auto& b) { return b.first; }));
}

TEST(Climb, LeavesWhatTheSpaceDoesNotAllow) {
  Space space = space_of(2, 4);
  space.allowed.assign(6, {1, 2});
  const std::vector<Placement> seen = {space.baseline, Placement(6, 1), Placement(6, 2)};
  const Surrogate surrogate(seen, {9, 1, 1});
  const Surrogate::Draw draw = surrogate.draw(1, 0);
  const Climb found =
      climb(space, units_of(space, true), space.baseline, {&draw, 1}, [](std::span<const double> v) { return v[0]; });
  EXPECT_EQ(std::count(found.top.begin(), found.top.end(), 0), 0);
}

TEST(HeldOut, ComparesByErrorAndOrder) {
  const std::vector<double> measured = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(compare(std::vector<double>{2, 3, 4, 5}, measured).rmse, 1);
  EXPECT_DOUBLE_EQ(compare(std::vector<double>{2, 3, 4, 5}, measured).tau, 1);
  EXPECT_DOUBLE_EQ(compare(std::vector<double>{4, 3, 2, 1}, measured).tau, -1);
  EXPECT_NEAR(compare(std::vector<double>{1, 1, 2, 3}, measured).tau, 5 / std::sqrt(30.0), 1e-12);
  EXPECT_TRUE(std::isnan(compare(std::vector<double>(4, 1), measured).tau));
  EXPECT_EQ(compare(measured, measured).n, 4u);
}

}  // namespace
}  // namespace attnkit::core::search
