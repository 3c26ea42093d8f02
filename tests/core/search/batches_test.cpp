#include "core/search/batches.hpp"

#include <gtest/gtest.h>

#include <string>

#include "tests/core/search/strategy_support.hpp"

namespace attnkit::search {
namespace {

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Strategy>(const Space&)> make;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"grid", make_grid},
      {"ablation by role", [](const Space& s) { return make_ablation(s, false); }},
      {"ablation by site", [](const Space& s) { return make_ablation(s, true); }},
      {"evolution by role", [](const Space& s) { return make_evolution(s, false, 40, 1); }},
      {"evolution by site", [](const Space& s) { return make_evolution(s, true, 60, 1); }}};
  return all;
}

TEST(Strategies, BeginWithTheBaselineAndProposeNothingTwice) {
  const Space space = space_of(2, 4);
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const std::vector<Placement> all = run(kind.make(space), separable).placements();
    ASSERT_GT(all.size(), 10u);
    EXPECT_EQ(all.front(), space.baseline);
    EXPECT_EQ(set_of(all).size(), all.size());
    for (const Placement& placement : homogeneous(space)) EXPECT_TRUE(contains(all, placement));
  }
}

TEST(Strategies, AreDoneOnceTheyAreDone) {
  for (const Kind& kind : kinds()) {
    const auto strategy = kind.make(space_of(2, 3));
    const History done = run(strategy, separable);
    EXPECT_TRUE(strategy->next(done.finished).empty()) << kind.name;
    EXPECT_TRUE(kind.make(space_of(2, 3))->next(done.finished).empty()) << kind.name;
  }
}

TEST(Strategies, CarryOnFromAnyJournal) {
  const Space space = space_of(2, 4);
  for (const Kind& kind : kinds()) {
    const History whole = run(kind.make(space), separable);
    for (size_t cut = 0; cut < whole.finished.size(); cut += 3) {
      const std::vector<Outcome> journal(whole.finished.begin(), whole.finished.begin() + static_cast<long>(cut));
      const History resumed = run(kind.make(space), separable, journal);
      EXPECT_EQ(resumed.placements(), whole.placements()) << kind.name << ", interrupted after " << cut;
    }
  }
}

TEST(Strategies, DoNotDependOnTheOrderOfOutcomes) {
  const Space space = space_of(2, 4);
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const History forward = run(kind.make(space), separable);
    const auto strategy = kind.make(space);
    std::vector<Outcome> backward;
    for (const std::vector<Placement>& batch : forward.batches) {
      EXPECT_EQ(strategy->next(backward), batch);
      for (const Placement& placement : batch) backward.insert(backward.begin(), separable(placement));
    }
    EXPECT_TRUE(strategy->next(backward).empty());
  }
}

TEST(Strategies, EndWhenNothingIsUsable) {
  const Objective refused = [](const Placement& placement) { return Outcome{.placement = placement}; };
  for (const Kind& kind : kinds()) {
    const std::vector<Placement> all = run(kind.make(space_of(2, 3)), refused).placements();
    EXPECT_EQ(set_of(all).size(), all.size()) << kind.name;
    EXPECT_LT(all.size(), 100u) << kind.name;
  }
}

TEST(Strategies, EndWhenOutcomesStayAway) {
  for (const Kind& kind : kinds()) {
    const auto strategy = kind.make(space_of(2, 3));
    std::vector<Placement> all;
    for (int i = 0; i < 1000; ++i) {
      const std::vector<Placement> batch = strategy->next({});
      if (batch.empty()) break;
      all.insert(all.end(), batch.begin(), batch.end());
    }
    EXPECT_TRUE(strategy->next({}).empty()) << kind.name;
    EXPECT_EQ(set_of(all).size(), all.size()) << kind.name;
  }
}

TEST(Strategies, NeedNoPermissionForTheBaseline) {
  Space space = space_of(2, 3);
  space.allowed.assign(space.sites.size(), {1, 2});
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const std::vector<Placement> all = run(kind.make(space), separable).placements();
    EXPECT_EQ(all.front(), space.baseline);
    EXPECT_TRUE(contains(all, Placement(6, 2)));
  }
}

TEST(Batches, PlacementsAreNumberedWithTheLastUnitFastest) {
  Space space = space_of(2, 3);
  const std::vector<Unit> roles = units_of(space, false);
  EXPECT_EQ(placement_at(space, roles, 0), (Placement{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(placement_at(space, roles, 5), (Placement{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(placement_at(space, units_of(space, true), 5), (Placement{0, 0, 0, 0, 1, 2}));
  std::set<Placement> all;
  for (uint64_t i = 0; i < size_of(space, true); ++i) all.insert(placement_at(space, units_of(space, true), i));
  EXPECT_EQ(all.size(), size_of(space, true));
}

TEST(Batches, AUnitIsAllowedOneChoiceOfItsOwn) {
  Space space = space_of(2, 3);
  space.allowed[0] = space.allowed[1] = {1, 2};
  const Unit encoder = units_of(space, false)[0];
  EXPECT_TRUE(is_allowed(space, encoder, {2, 2, 0, 0, 0, 0}));
  EXPECT_FALSE(is_allowed(space, encoder, {0, 0, 0, 0, 0, 0}));
  EXPECT_FALSE(is_allowed(space, encoder, {1, 2, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace attnkit::search
