// A small form of docs/benchmarks/search-proof.md, and what is peculiar to guided evolution.
#include <gtest/gtest.h>

#include "tests/core/search/synthetic/compare.hpp"

namespace attnkit::core::search {
namespace {

// Of the best value random search and evolution find about two thirds with 64 trials, guided evolution seven eighths.
TEST(GuidedEvolution, FindsMoreThanRandomSearchAndEvolutionAtEqualCost) {
  double random = 0, evolution = 0, guided = 0;
  for (uint64_t seed = 201; seed <= 206; ++seed) {
    const SyntheticModel model(4, seed);
    const double best = best_of_all(model);
    random += search(Contestant::random, model, 64, seed).value / best / 6;
    evolution += search(Contestant::evolution, model, 64, seed).value / best / 6;
    guided += search(Contestant::guided, model, 64, seed).value / best / 6;
  }
  EXPECT_GT(guided, 0.75);
  EXPECT_GT(guided, random + 0.08);
  EXPECT_GT(guided, evolution + 0.08);
}

TEST(GuidedEvolution, SaysHowMuchItSawAndHowWellItGuesses) {
  const SyntheticModel model(4, 1);
  const Seen seen = search(Contestant::guided, model, 128, 1).seen;
  EXPECT_EQ(seen.space_size, 262144u);
  EXPECT_EQ(seen.proposed, 128u);
  ASSERT_TRUE(seen.quality && seen.throughput && seen.memory);
  EXPECT_EQ(seen.quality->n, 128u);
  EXPECT_GT(seen.quality->tau, 0.4);
  EXPECT_LT(seen.throughput->rmse, 0.1);  // of a logarithm: ten per cent
  EXPECT_GT(seen.throughput->tau, 0.7);
  EXPECT_LT(seen.memory->rmse, 0.1);
}

TEST(GuidedEvolution, SaysNothingOfGuessesWithoutMeasurements) {
  const auto strategy = make_guided_evolution(space_of(3, 4), true, 30, 1);
  strategy->next({});
  EXPECT_EQ(strategy->seen().proposed, 5u - 1);
  EXPECT_FALSE(strategy->seen().quality);
}

// 17 mechanisms in 9 blocks: about 10^11 placements.
TEST(GuidedEvolution, FindsItsWayInALargeSpace) {
  const SyntheticModel model(17, 3);
  const Found guided = search(Contestant::guided, model, 200, 3), random = search(Contestant::random, model, 200, 3);
  EXPECT_EQ(guided.seen.space_size, 118587876497u);
  EXPECT_GT(guided.value, 1.2 * random.value);
}

// Placements with choice 3 fail, or are beyond a limit: then nothing or all is known of them.
TEST(GuidedEvolution, KeepsAwayFromWhatIsUnusable) {
  for (bool is_measured : {false, true}) {
    const Space space = space_of(3, 4);
    const Objective objective = [&](const Placement& placement) {
      Outcome outcome = separable(placement);
      if (std::ranges::count(placement, 3) == 0) return outcome;
      outcome.usable = false;
      return is_measured ? outcome : Outcome{.placement = placement};
    };
    const History done = run(make_guided_evolution(space, true, 160, 1), objective);
    const auto usable = std::ranges::count_if(done.finished.end() - 80, done.finished.end(), &Outcome::usable);
    EXPECT_GT(usable, 40) << is_measured;  // by chance 0.75^9, 6 of 80
  }
}

TEST(GuidedEvolution, CopesWithOutcomesThatSayNothing) {
  const Objective equal = [](const Placement& p) { return Outcome{p, true, 0.5, 1, 1, 1}; };
  const Objective broken = [](const Placement& p) { return Outcome{p, true, -INFINITY, 1, NAN, NAN}; };
  const Objective negative = [](const Placement& p) { return Outcome{p, true, -2, 1, 1, -static_cast<double>(p[0])}; };
  for (const Objective& objective : {equal, broken, negative}) {
    const History done = run(make_guided_evolution(space_of(3, 4), true, 60, 1), objective);
    EXPECT_EQ(set_of(done.placements()).size(), 60u);
  }
  // One block, and one with a single choice beside it.
  Space space = space_of(1, 3);
  space.blocks.resize(1);
  space.allowed.resize(1);
  space.baseline.resize(1);
  EXPECT_EQ(run(make_guided_evolution(space, true, 60, 1), separable).finished.size(), 3u);
}

}  // namespace
}  // namespace attnkit::core::search
