#include <gtest/gtest.h>

#include <random>

#include "tests/core/search/strategy_support.hpp"

namespace attnkit::core::search {
namespace {

bool is_no_worse(const Outcome& a, const Outcome& b) {
  return a.quality >= b.quality && a.throughput >= b.throughput && a.memory <= b.memory;
}

// Neighbouring sites disturb each other, so that sites cannot be chosen one by one.
Outcome entangled(const Placement& placement) {
  Outcome outcome = separable(placement);
  for (size_t s = 1; s < placement.size(); ++s)
    outcome.quality -= placement[s] == placement[s - 1] ? 0 : 0.3 * noise(s, placement[s] + 4 * placement[s - 1], 9);
  return outcome;
}

std::vector<Outcome> random_samples(const Space& space, size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Outcome> samples;
  for (size_t i = 0; i < n; ++i) {
    Placement placement;
    for (const std::vector<int>& allowed : space.allowed) placement.push_back(allowed[random() % allowed.size()]);
    samples.push_back(entangled(placement));
  }
  return samples;
}

size_t count_matched(const std::vector<Outcome>& samples, const std::vector<Outcome>& found) {
  return static_cast<size_t>(std::count_if(samples.begin(), samples.end(), [&](const Outcome& sample) {
    return std::any_of(found.begin(), found.end(), [&](const Outcome& o) { return is_no_worse(o, sample); });
  }));
}

// Over 60 seeds the evolved placements matched 274 to 300 (median 292) of 300 random samples, and other random samples
// 246 to 277 (median 265) of them: nine tenths alone would not tell evolution from chance, so the rest compares them.
TEST(Evolution, MatchesNearlyAllRandomSamplesAndFarMoreThanChanceDoes) {
  const Space space = space_of(3, 4);
  size_t missed = 0, missed_by_chance = 0;
  for (uint64_t seed : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(seed);
    const std::vector<Outcome> found = run(make_evolution(space, true, 300, seed), entangled).finished;
    ASSERT_EQ(found.size(), 300u);
    const std::vector<Outcome> samples = random_samples(space, 300, seed + 1000);
    const size_t matched = count_matched(samples, found);
    EXPECT_GE(matched, 270u);
    EXPECT_LT(count_matched(found, samples), 200u);
    missed += samples.size() - matched;
    missed_by_chance += samples.size() - count_matched(samples, random_samples(space, 300, seed + 5000));
  }
  EXPECT_LT(missed * 2, missed_by_chance);
}

TEST(Evolution, ProposesAsManyAsAsked) {
  const Space space = space_of(3, 4);
  for (int trials : {0, 1, 5, 13, 14, 100}) {
    const History done = run(make_evolution(space, true, trials, 3), entangled);
    EXPECT_EQ(done.finished.size(), static_cast<size_t>(trials));
  }
  EXPECT_TRUE(make_evolution(space, true, -1, 3)->next({}).empty());
}

TEST(Evolution, BeginsWithTheBaselineTheHomogeneousAndSingleRoles) {
  const Space space = space_of(3, 4);
  const std::vector<Placement> first = make_evolution(space, true, 100, 3)->next({});
  EXPECT_EQ(first.size(), 1u + 3 + 3 * 3);
  EXPECT_EQ(first[0], Placement(9, 0));
  EXPECT_TRUE(contains(first, Placement(9, 3)));
  EXPECT_TRUE(contains(first, {0, 0, 0, 2, 2, 2, 0, 0, 0}));
}

TEST(Evolution, ExhaustsSmallSpaces) {
  const Space space = space_of(2, 2);
  EXPECT_EQ(run(make_evolution(space, true, 1000, 1), entangled).finished.size(), 64u);
  EXPECT_EQ(run(make_evolution(space, false, 1000, 1), entangled).finished.size(), 8u);
  EXPECT_EQ(run(make_evolution(space_of(2, 1), true, 1000, 1), entangled).finished.size(), 1u);
}

TEST(Evolution, ExhaustsTheAllowedBesideAForbiddenBaseline) {
  Space space = space_of(2, 3);
  space.allowed.assign(6, {1, 2});
  space.baseline = {0, 1, 0, 1, 0, 1};
  // 8 placements by role, the baseline and its 6 changes of one role.
  const History done = run(make_evolution(space, false, 1000, 1), entangled);
  EXPECT_EQ(done.finished.size(), 8u + 1 + 6);
  for (size_t b = 1; b < done.batches.size(); ++b)
    for (const Placement& placement : done.batches[b]) EXPECT_EQ(std::count(placement.begin(), placement.end(), 0), 0);
}

TEST(Evolution, KeepsToRolesUnlessAskedForLayers) {
  const Space space = space_of(3, 4);
  const History done = run(make_evolution(space, false, 64, 5), entangled);
  EXPECT_EQ(done.finished.size(), 64u);
  for (const Outcome& outcome : done.finished) EXPECT_TRUE(is_per_role(space, outcome.placement));
}

TEST(Evolution, DependsOnItsSeed) {
  const Space space = space_of(3, 4);
  const auto once = run(make_evolution(space, true, 60, 1), entangled).placements();
  EXPECT_EQ(run(make_evolution(space, true, 60, 1), entangled).placements(), once);
  EXPECT_NE(run(make_evolution(space, true, 60, 2), entangled).placements(), once);
}

TEST(Evolution, CopesWithSpacesBeyondCounting) {
  const Space space = space_of(30, 4);
  ASSERT_EQ(size_of(space, true), UINT64_MAX);
  const History done = run(make_evolution(space, true, 80, 1), entangled);
  EXPECT_EQ(set_of(done.placements()).size(), 80u);
}

TEST(Evolution, BreedsOnlyFromWhatIsUsable) {
  const Space space = space_of(3, 4);
  // Choice 3 would be on every front, for it is the fastest.
  const Objective objective = [](const Placement& placement) {
    Outcome outcome = entangled(placement);
    outcome.usable = std::count(placement.begin(), placement.end(), 3) == 0;
    return outcome;
  };
  const auto share_of_3 = [](const History& history) {
    double count = 0;
    for (const Outcome& o : history.finished) count += std::count(o.placement.begin(), o.placement.end(), 3);
    return count / (9.0 * static_cast<double>(history.finished.size()));
  };
  const History free = run(make_evolution(space, true, 200, 1), entangled);
  const History limited = run(make_evolution(space, true, 200, 1), objective);
  EXPECT_LT(share_of_3(limited) * 2, share_of_3(free)) << share_of_3(limited);
}

}  // namespace
}  // namespace attnkit::core::search
