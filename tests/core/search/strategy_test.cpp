#include "core/search/strategy.hpp"

#include <gtest/gtest.h>

#include <string>

#include "tests/core/search/strategy_support.hpp"

namespace attnkit::core::search {
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
      {"evolution by site", [](const Space& s) { return make_evolution(s, true, 60, 1); }},
      {"guided evolution by role", [](const Space& s) { return make_guided_evolution(s, false, 40, 1); }},
      {"guided evolution by site", [](const Space& s) { return make_guided_evolution(s, true, 60, 1); }}};
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
  space.allowed.assign(space.blocks.size(), {1, 2});
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

Placement encoder_of(const Space& space, const Placement& placement) {
  const auto [first, last] = blocks_of(space, ATTN_ENCODER_SELF);
  return Placement(placement.begin() + static_cast<long>(first), placement.begin() + static_cast<long>(last));
}

TEST(Grid, IsEveryPlacementByRole) {
  Space space = space_of(2, 4);
  space.allowed[2] = space.allowed[3] = {1, 3};
  const History done = run(make_grid(space), separable);
  ASSERT_EQ(done.batches.size(), 1u);
  // The baseline is not among the 4 * 2 * 4 since the decoder does not allow its choice.
  EXPECT_EQ(done.finished.size(), size_of(space, false) + 1);
  for (const Outcome& outcome : done.finished) EXPECT_TRUE(is_per_role(space, outcome.placement));
}

TEST(Grid, BeginsWithTheBaselineAndTheHomogeneous) {
  Space space = space_of(3, 3);
  space.baseline = {2, 2, 2, 0, 1, 0, 2, 2, 2};
  const std::vector<Placement> all = make_grid(space)->next({});
  EXPECT_EQ(all[0], space.baseline);
  EXPECT_EQ(all[1], Placement(9, 0));
  EXPECT_EQ(all[2], Placement(9, 1));
  EXPECT_EQ(all[3], Placement(9, 2));
}

TEST(Grid, KeepsEqualEncodersTogether) {
  const Space space = space_of(2, 4);
  const std::vector<Placement> all = make_grid(space)->next({});
  std::vector<Placement> encoders;
  for (size_t i = 4; i < all.size(); ++i)
    if (encoders.empty() || encoders.back() != encoder_of(space, all[i])) encoders.push_back(encoder_of(space, all[i]));
  EXPECT_EQ(encoders.size(), 4u);
}

TEST(Grid, WorksWithoutAnEncoder) {
  Space space = space_of(2, 3);
  space.blocks.erase(space.blocks.begin(), space.blocks.begin() + 2);
  space.allowed.resize(4);
  space.baseline.resize(4);
  EXPECT_EQ(make_grid(space)->next({}).size(), 9u);
}

}  // namespace
}  // namespace attnkit::core::search
