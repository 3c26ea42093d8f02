#include <gtest/gtest.h>

#include "tests/core/search/strategy_support.hpp"

namespace attnkit::core::search {
namespace {

// The best of all placements with one choice per unit, for an objective that is a sum over sites.
Placement optimum(const Space& space, bool per_layer, const Objective& objective) {
  Placement best;
  for (const std::vector<int>& allowed : space.allowed) best.push_back(allowed.front());
  for (size_t s = 0; s < space.blocks.size();) {
    const size_t last = per_layer ? s + 1 : blocks_of(space, space.blocks[s].role).last;
    Placement tried = best;
    for (int choice : space.allowed[s]) {
      std::fill(tried.begin() + static_cast<long>(s), tried.begin() + static_cast<long>(last), choice);
      if (*objective(tried).rank > *objective(best).rank) best = tried;
    }
    s = last;
  }
  return best;
}

Placement best_of(const History& history) {
  return std::max_element(history.finished.begin(), history.finished.end(),
                          [](const Outcome& a, const Outcome& b) { return *a.rank < *b.rank; })
      ->placement;
}

Outcome uneven(const Placement& placement) {
  Outcome outcome = separable(placement);
  double merit = 0;
  for (size_t s = 0; s < placement.size(); ++s) merit += noise(s, placement[s], 77);
  outcome.rank = merit;
  return outcome;
}

TEST(Ablation, FirstChangesOneBlockAtATime) {
  const Space space = space_of(2, 3);
  const std::vector<Placement> by_role = make_ablation(space, false)->next({});
  EXPECT_EQ(by_role.size(), 1u + 2 + 3 * 2);
  EXPECT_TRUE(contains(by_role, {0, 0, 2, 2, 0, 0}));
  const std::vector<Placement> by_site = make_ablation(space, true)->next({});
  EXPECT_EQ(by_site.size(), 1u + 2 + 6 * 2);
  EXPECT_TRUE(contains(by_site, {0, 0, 0, 2, 0, 0}));
}

TEST(Ablation, FindsTheOptimumOfASeparableObjective) {
  for (bool per_layer : {false, true}) {
    for (int layers : {1, 2, 3}) {
      const Space space = space_of(layers, 5);
      const History done = run(make_ablation(space, per_layer), uneven);
      EXPECT_EQ(best_of(done), optimum(space, per_layer, uneven)) << per_layer << " " << layers;
      EXPECT_LE(done.batches.size(), 2u);
    }
  }
}

TEST(Ablation, CombinesTheTwoBestOfEveryUnitWhileTheyAreFew) {
  const Space space = space_of(1, 4);
  const Objective objective = [](const Placement& p) {
    return Outcome{p, true, 0, 1, 1, 1.0 * p[0] + 2.0 * p[1] - 1.0 * p[2]};
  };
  const History done = run(make_ablation(space, false), objective);
  ASSERT_EQ(done.batches.size(), 2u);
  // 3 or 2, 3 or 2, and 0 or 1 in the cross attention; none of the eight is new but these.
  const std::set<Placement> expected{{3, 3, 0}, {3, 2, 0}, {2, 3, 0}, {2, 2, 0},
                                     {3, 3, 1}, {3, 2, 1}, {2, 3, 1}, {2, 2, 1}};
  EXPECT_EQ(set_of(done.batches[1]), expected);
}

TEST(Ablation, ClimbsByGainWhereCombinationsAreMany) {
  const Space space = space_of(3, 2);
  const std::vector<double> gains{5, -1, 3, 9, -2, 1, 4, 8, -3};
  const Objective objective = [&](const Placement& p) {
    double merit = 0;
    for (size_t s = 0; s < p.size(); ++s) merit += gains[s] * p[s];
    return Outcome{p, true, 0, 1, 1, merit};
  };
  const History done = run(make_ablation(space, true), objective);
  ASSERT_EQ(done.batches.size(), 2u);
  const std::vector<Placement> climb{{0, 0, 0, 1, 0, 0, 0, 1, 0},
                                     {1, 0, 0, 1, 0, 0, 0, 1, 0},
                                     {1, 0, 0, 1, 0, 0, 1, 1, 0},
                                     {1, 0, 1, 1, 0, 0, 1, 1, 0},
                                     {1, 0, 1, 1, 0, 1, 1, 1, 0}};
  EXPECT_EQ(done.batches[1], climb);
}

TEST(Ablation, LeavesOutWhatIsNotUsable) {
  const Space space = space_of(1, 3);
  const Objective objective = [](const Placement& p) {
    const bool usable = std::count(p.begin(), p.end(), 2) == 0;
    return Outcome{p, usable, 0, 1, 1, 1.0 * (p[0] + p[1] + p[2])};
  };
  const History done = run(make_ablation(space, false), objective);
  ASSERT_EQ(done.batches.size(), 2u);
  EXPECT_EQ(set_of(done.batches[1]), (std::set<Placement>{{1, 1, 0}, {1, 0, 1}, {0, 1, 1}}));
}

TEST(Ablation, CombinesChangesThatMissALimitAlone) {
  // Only a placement with little left of the baseline's choice keeps the limit, which no single change does.
  const Objective objective = [](const Placement& p) {
    Outcome outcome = uneven(p);
    outcome.usable = std::count(p.begin(), p.end(), 0) < 2;
    outcome.quality = static_cast<double>(std::count(p.begin(), p.end(), 0));
    outcome.rank = std::nullopt;
    return outcome;
  };
  for (int layers : {1, 3}) {
    const History done = run(make_ablation(space_of(layers, 3), true), objective);
    ASSERT_EQ(done.batches.size(), 2u);
    const std::vector<Placement>& combined = done.batches[1];
    EXPECT_TRUE(std::any_of(combined.begin(), combined.end(), [&](const Placement& p) { return objective(p).usable; }));
  }
}

TEST(Ablation, WithoutRanksTheFrontDecidesAndThenQuality) {
  const Space space = space_of(1, 4);
  // Choice 3 is dominated by 2; 1 and 2 are on the front with the baseline, and the baseline has the best quality.
  const std::vector<double> quality{9, 5, 7, 6}, throughput{1, 3, 2, 1.5};
  const Objective objective = [&](const Placement& p) {
    Outcome outcome{p, true, 0, 0, 1, std::nullopt};
    for (int choice : p) {
      outcome.quality += quality[static_cast<size_t>(choice)];
      outcome.throughput += throughput[static_cast<size_t>(choice)];
    }
    return outcome;
  };
  const History done = run(make_ablation(space, false), objective);
  ASSERT_EQ(done.batches.size(), 2u);
  EXPECT_EQ(set_of(done.batches[1]), (std::set<Placement>{{0, 2, 2}, {2, 0, 2}, {2, 2, 0}}));
}

TEST(Ablation, CombinesWithinTheSpace) {
  for (int layers : {1, 3}) {
    Space space = space_of(layers, 4);
    space.allowed.assign(space.blocks.size(), {1, 3});
    const History done = run(make_ablation(space, true), uneven);
    EXPECT_TRUE(contains(done.placements(), optimum(space, true, uneven)));
    ASSERT_EQ(done.batches.size(), 2u);
    for (const Placement& placement : done.batches[1]) EXPECT_EQ(std::count(placement.begin(), placement.end(), 0), 0);
  }
}

}  // namespace
}  // namespace attnkit::core::search
