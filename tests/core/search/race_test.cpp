#include "core/search/race.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/search/replay/replay.hpp"

namespace attnkit::core::search {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;
using testing::SizeIs;

// Placements with made-up outcomes: placement i is right in a share of 1,000 examples and so many times as fast as the
// first, the baseline.  Errors of a placement are its own; timings waver by a share `noise`.
class RaceTest : public testing::Test {
 protected:
  RaceTest() {
    settings_.metric = Metric::exact;
    track_.rungs = {100, 200, 400, 1000};
    track_.std_bench = 1;
    track_.measure = [this](const std::vector<size_t>& left, int64_t examples, int blocks) {
      for (const size_t i : left) {
        examples_[i] = examples;
        while (speeds_[i].size() < static_cast<size_t>(blocks))
          speeds_[i].push_back(speed_[i] * std::exp(noise_ * normal_(random_)));
      }
    };
    track_.racer = [this](size_t i) { return Racer{&outcomes_[i], speeds_[i], 1, i != broken_}; };
  }

  void add(double share, double speed) {
    Outcomes& o = outcomes_.emplace_back();
    o.resize(1000);
    for (size_t i = 0; i < 1000; ++i) o.set(i, 1, static_cast<double>(random_() % 100000) < 1e5 * share, 0);
    speed_.push_back(speed);
    speeds_.emplace_back();
    examples_.push_back(0);
  }

  RaceResult run() {
    track_.baseline = &outcomes_.front();
    return race(settings_, track_, outcomes_.size());
  }

  Settings settings_;
  RaceTrack track_;
  std::mt19937_64 random_{1};
  std::normal_distribution<double> normal_;
  std::vector<Outcomes> outcomes_;
  std::vector<double> speed_;
  std::vector<std::vector<double>> speeds_;
  std::vector<int64_t> examples_;
  double noise_ = 0.02;
  size_t broken_ = SIZE_MAX;
};

TEST_F(RaceTest, WhoIsFarBehindGoesNoFurther) {
  add(0.99, 1);
  add(0.985, 3);
  for (int i = 0; i < 10; ++i) add(0.7, 2);
  const RaceResult result = run();
  EXPECT_EQ(result.top.front(), 1u);
  for (size_t i = 2; i < 12; ++i) EXPECT_EQ(examples_[i], 100);
  EXPECT_EQ(examples_[1], 1000);
  EXPECT_EQ(result.stages.front().raced, 12u);
  EXPECT_LE(result.stages.front().kept, 2u);
}

TEST_F(RaceTest, WhatCannotBeToldApartIsTied) {
  track_.std_bench = 10;
  add(0.99, 1);
  add(0.98, 3);
  add(0.98, 3);
  EXPECT_THAT(run().top, SizeIs(2));
  EXPECT_EQ(speeds_[1].size(), speeds_[2].size());
}

TEST_F(RaceTest, ATwinOfTheLeaderKeepsNobodyElse) {
  settings_.metric = Metric::perplexity, settings_.rank = Rank::quality;
  for (int i = 0; i < 3; ++i) add(1, 1);
  for (size_t e = 0; e < 1000; ++e) {
    const double nll = 5 + normal_(random_);
    outcomes_[0].set(e, 1, 0, nll), outcomes_[1].set(e, 1, 0, nll + 1e-6 * normal_(random_));
    outcomes_[2].set(e, 1, 0, nll + 0.2 + 0.1 * normal_(random_));
  }
  EXPECT_THAT(run().top, Not(Contains(2)));
}

TEST_F(RaceTest, OneThatIsLeftIsMeasuredToTheEnd) {
  settings_.rank = Rank::throughput;
  add(0.9, 1);
  add(0.9, 5);
  EXPECT_THAT(run().top, ElementsAre(1));
  EXPECT_EQ(examples_[0], 100);
  EXPECT_EQ(examples_[1], 1000);
}

TEST_F(RaceTest, TimingThatIsTooNoisyIsRepeatedAndThenSaysSo) {
  settings_.rank = Rank::throughput;
  noise_ = 0.5;
  add(0.9, 1);
  add(0.9, 1.05);
  EXPECT_THAT(run().top, SizeIs(2));
  EXPECT_EQ(speeds_[1].size(), 16u);
}

TEST_F(RaceTest, AFailedPlacementIsNoLeader) {
  add(0.99, 1);
  add(0.99, 9);
  broken_ = 1;
  EXPECT_THAT(run().top, ElementsAre(0));
}

TEST_F(RaceTest, BelowTheLeastQualityNobodyWins) {
  settings_.limits.min_quality_ratio = 0.97;
  add(0.99, 1);
  add(0.5, 50);
  add(0.985, 1.5);
  const RaceResult result = run();
  EXPECT_THAT(result.top, Not(Contains(1u)));
  EXPECT_FALSE(result.top.empty());
  settings_.limits.min_quality_ratio = 2;
  EXPECT_TRUE(run().top.empty());
}

TEST_F(RaceTest, WithoutAUnitOfQualityOnlyQualityDrops) {
  track_.std_bench = {};
  add(0.9, 1);
  add(0.9, 9);
  outcomes_[1] = outcomes_[0];
  add(0.5, 9);
  EXPECT_THAT(run().top, ElementsAre(1, 0));
}

TEST_F(RaceTest, OfEqualQualityWhatNothingDominatesComesFirst) {
  noise_ = 0;
  for (const double speed : {1.0, 2.0, 9.0, 3.0}) add(0.9, speed);
  for (size_t i = 1; i < 4; ++i) outcomes_[i] = outcomes_[0];
  for (size_t e = 0; e < 3; ++e) {
    outcomes_[0].right[e] = 0;
    for (size_t i = 1; i < 4; ++i) outcomes_[i].right[e] = 1;
  }
  track_.std_bench = {};
  EXPECT_EQ(run().top.front(), 2u);
  track_.std_bench = 1;
  settings_.rank = Rank::quality;
  EXPECT_EQ(run().top.front(), 2u);
}

TEST_F(RaceTest, AnExponentOrAWeightOfZeroLeavesQualityOut) {
  add(0.99, 1);
  add(0.5, 3);
  for (double RcpSettings::*one : {&RcpSettings::quality, &RcpSettings::quality_weight}) {
    settings_.weights = {};
    settings_.weights.*one = 0;
    track_.std_bench = 1;
    EXPECT_THAT(run().top, ElementsAre(1));
    track_.std_bench = {};
    EXPECT_THAT(run().top, ElementsAre(1)) << "where it has no unit either";
  }
  track_.std_bench = 1;
  settings_.weights = {};
  settings_.weights.quality = 2;
  EXPECT_THAT(run().top, ElementsAre(0));
}

TEST_F(RaceTest, OfOneExampleALimitIsTheBaselines) {
  track_.rungs = {1};
  settings_.limits.min_quality_ratio = 0.9;
  add(0.99, 1);
  add(0.99, 2);
  for (Outcomes& o : outcomes_) o.right[0] = 1;
  EXPECT_FALSE(run().top.empty());
}

// Rivals as good as the leader, each wrong on examples of its own: the largest of their differences to it, which go
// together by half, has a known distribution.
TEST_F(RaceTest, ABoundaryOfHighConfidenceIsThatOfAsManyDraws) {
  constexpr size_t rivals = 20;
  settings_.rank = Rank::quality;
  for (size_t i = 0; i <= rivals; ++i) {
    add(1, 1);
    for (size_t e = 0; e < 1000; ++e) outcomes_[i].right[e] = e / 40 != i;
  }
  const Comparison comparison(settings_, 1, outcomes_[0], 1000);
  std::vector<Standing> all;
  for (const Outcomes& o : outcomes_) all.push_back(comparison.standing({&o, {1, 1}, 1}, 0));
  const auto below = [](double boundary) {
    double sum = 0;
    for (double x = -8; x < 8; x += 0.01)
      sum += 0.01 * std::exp(-x * x / 2) / std::sqrt(2 * M_PI) *
             std::pow(0.5 * std::erfc(-(boundary * std::sqrt(2) - x) / std::sqrt(2)), rivals);
    return sum;
  };
  for (const double confidence : {0.95, 0.99, 0.999}) {
    const double beyond = 1 - below(comparison.boundary(all, 0, {1000}, confidence));
    EXPECT_NEAR(beyond / (1 - confidence), 1, 0.5) << confidence;
  }
}

TEST_F(RaceTest, EveryMetricRaces) {
  for (const Metric metric : {Metric::accuracy, Metric::perplexity}) {
    settings_.metric = metric;
    outcomes_.clear(), speed_.clear(), speeds_.clear(), examples_.clear();
    track_.std_bench = metric == Metric::perplexity ? 0.1 : 1;
    for (const double loss : {0.1, 0.1, 0.9}) {
      add(1 - loss, loss == 0.9 ? 1 : 2);
      for (size_t i = 0; i < 1000; ++i)
        outcomes_.back().nll[i] = static_cast<float>(loss * (0.5 + static_cast<double>(i % 10) / 10));
    }
    EXPECT_THAT(run().top, Not(Contains(2u))) << static_cast<int>(metric);
  }
}

// The statistic of rcp_mem against its plain definition: resampled examples move the difference as much as it says.
TEST_F(RaceTest, DeviationsOfRankValuesAreThoseOfResampledExamples) {
  noise_ = 0;
  add(0.99, 1);
  add(0.98, 3);
  add(0.97, 3.5);
  std::vector<double> advantages;
  const auto of = [&](const std::vector<Outcomes>& all) {
    const Comparison c(settings_, 1, all[0], 1000);
    return c.advantage(c.standing({&all[1], {3, 3}, 0.8}, 0), c.standing({&all[2], {3.5, 3.5}, 0.7}, 0));
  };
  for (int r = 0; r < 400; ++r) {
    std::vector<Outcomes> drawn(3);
    for (Outcomes& o : drawn) o.resize(1000);
    for (size_t i = 0; i < 1000; ++i) {
      const size_t from = random_() % 1000;
      for (size_t p = 0; p < 3; ++p) drawn[p].set(i, 1, outcomes_[p].right[from], 0);
    }
    advantages.push_back(of(drawn).value);
  }
  const Advantage whole = of(outcomes_);
  EXPECT_NEAR(whole.deviation / sample_deviation(advantages), 1.05, 0.12);  // two pseudo-pairs add a little
  const auto denominator = [&](size_t p) {
    return 1 + score_of(Metric::exact, outcomes_[0], 1000) - score_of(Metric::exact, outcomes_[p], 1000);
  };
  EXPECT_NEAR(whole.value, (3 + 1 / 0.8) / 2 * denominator(2) - (3.5 + 1 / 0.7) / 2 * denominator(1), 1e-9);
}

TEST(Replay, TheTopGroupHoldsTheBestAndTheWinnerIsClose) {
  const Recorded recorded(std::string(ATTNKIT_SOURCE_DIR) + "/tests/core/search/golden/numbers-en-de.json");
  Settings settings;
  const ReplayTable order = replay(recorded, settings, Resampling::order, 40, 1);
  EXPECT_GE(order.covered, 38);
  EXPECT_LT(order.regret, 0.01);
  EXPECT_LT(order.examples, 0.9);  // it saves something
  EXPECT_GE(replay(recorded, settings, Resampling::examples, 40, 1).covered, 38);
  // The number of lists keeps the winner from the best: with more of them it comes nearer.
  const ReplayTable few = measure_all(recorded, settings, 500, 40, 1),
                    many = measure_all(recorded, settings, 8000, 40, 1);
  EXPECT_GT(many.close, few.close);
  EXPECT_LT(many.regret, few.regret / 2);
}

}  // namespace
}  // namespace attnkit::core::search
