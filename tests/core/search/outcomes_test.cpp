#include "core/search/outcomes.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

constexpr Metric metrics[] = {Metric::exact, Metric::accuracy, Metric::perplexity, Metric::bleu};

// Made-up examples of a placement that is right in a share of its tokens.
Outcomes made_up(size_t n, double share, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto unit = [&] { return static_cast<double>(random() % 10000) / 10000; };
  Outcomes o;
  o.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const auto tokens = static_cast<int64_t>(4 + random() % 30);
    const int64_t right = unit() < share ? tokens : static_cast<int64_t>(unit() * static_cast<double>(tokens));
    o.set(i, tokens, right, unit() * static_cast<double>(tokens));
    BleuStats pair;
    pair.hypothesis = tokens - static_cast<int64_t>(random() % 3);
    pair.reference = tokens;
    for (int k = 0; k < 4; ++k) {
      pair.totals[static_cast<size_t>(k)] = pair.hypothesis - std::min<int64_t>(k, pair.hypothesis);
      pair.matches[static_cast<size_t>(k)] = std::min(pair.totals[static_cast<size_t>(k)], right);
    }
    o.pairs.push_back(pair);
  }
  return o;
}

// The examples `drawn` of o.
Outcomes taken(const Outcomes& o, const std::vector<size_t>& drawn) {
  Outcomes found;
  found.resize(drawn.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    found.set(i, o.tokens[drawn[i]], o.right[drawn[i]], static_cast<double>(o.nll[drawn[i]]));
    found.pairs.push_back(o.pairs[drawn[i]]);
  }
  return found;
}

TEST(Outcomes, InfluencesAreTheDerivativeOfTheScoreInTheWeightOfAnExample) {
  const size_t n = 200;
  const Outcomes o = made_up(n, 0.7, 1);
  for (const Metric metric : metrics) {
    const std::vector<double> all = influences(metric, o, n);
    double sum = 0;
    for (const double f : all) sum += f;
    EXPECT_NEAR(sum / n, 0, 1e-9);
    // One example more in 100 times as many: its weight grows by 1 / (100 n) of the whole.
    std::vector<size_t> many;
    for (size_t i = 0; i < 100 * n; ++i) many.push_back(i % n);
    const double before = score_of(metric, taken(o, many), many.size());
    for (const size_t i : {size_t{0}, size_t{17}, n - 1}) {
      std::vector<size_t> more = many;
      more.push_back(i);
      const double slope = (score_of(metric, taken(o, more), more.size()) - before) * static_cast<double>(many.size());
      EXPECT_NEAR(all[i], slope, 2e-3 * (1 + std::abs(slope))) << static_cast<int>(metric) << " " << i;
    }
  }
}

TEST(Outcomes, IntervalsOfDifferencesHoldTheTruthAsOftenAsTheySay) {
  constexpr size_t population = 20000, n = 300;
  const Outcomes a = made_up(population, 0.80, 2), b = made_up(population, 0.70, 3);
  std::mt19937_64 random(4);
  for (const Metric metric : metrics) {
    const double truth = score_of(metric, a, population) - score_of(metric, b, population);
    const int runs = metric == Metric::bleu ? 60 : 400;
    int held = 0;
    for (int run = 0; run < runs; ++run) {
      std::vector<size_t> drawn(n);
      for (size_t& d : drawn) d = random() % population;
      const Difference d = difference(metric, taken(a, drawn), taken(b, drawn), n);
      held += d.interval.low <= truth && truth <= d.interval.high;
    }
    EXPECT_GE(held, 0.91 * runs) << static_cast<int>(metric);
    EXPECT_LT(held, runs) << static_cast<int>(metric);
  }
}

// The same numbers everywhere, so that a search can be repeated.
TEST(Outcomes, IntervalsOfBleuAreThoseOfAThousandResamples) {
  constexpr size_t n = 40;
  const Outcomes a = made_up(n, 0.5, 1), b = made_up(n, 0.3, 2);
  std::mt19937_64 random(1);
  std::vector<double> differences(1000);
  for (double& difference : differences) {
    std::vector<size_t> drawn(n);
    for (size_t& i : drawn) i = random() % n;
    difference = score_of(Metric::bleu, taken(a, drawn), n) - score_of(Metric::bleu, taken(b, drawn), n);
  }
  const Interval found = difference(Metric::bleu, a, b, n, true).interval;
  EXPECT_DOUBLE_EQ(found.low, quantile(differences, 0.025));
  EXPECT_DOUBLE_EQ(found.high, quantile(differences, 0.975));
}

TEST(Outcomes, McNemarIsTheBinomialTestOfTheDiscordantExamples) {
  Outcomes a, b;
  a.resize(100);
  b.resize(100);
  for (size_t i = 0; i < 100; ++i) {
    a.set(i, 1, i >= 2, 0);            // wrong in the first two
    b.set(i, 1, i < 2 || i >= 12, 0);  // and this one in ten others
  }
  const Difference d = difference(Metric::exact, a, b, 100);
  EXPECT_DOUBLE_EQ(d.value, 8);
  EXPECT_NEAR(d.p, 0.03857421875, 1e-12);  // scipy.stats.binomtest(2, 12).pvalue
  EXPECT_EQ(difference(Metric::exact, a, a, 100).p, 1);
}

TEST(Outcomes, NoDifferenceInAFewExamplesIsNoCertainty) {
  const Outcomes same = made_up(20, 1, 5);
  const Difference d = difference(Metric::exact, same, same, 20);
  EXPECT_EQ(d.value, 0);
  EXPECT_LT(d.interval.low, -5);
  EXPECT_GT(d.interval.high, 5);
}

TEST(Outcomes, TravelAsJson) {
  const Outcomes o = made_up(5, 0.5, 6);
  const Outcomes back = nlohmann::json::parse(nlohmann::json(o).dump()).get<Outcomes>();
  EXPECT_EQ(back.tokens, o.tokens);
  EXPECT_EQ(back.right, o.right);
  EXPECT_EQ(back.nll, o.nll);
  EXPECT_EQ(back.pairs, o.pairs);
}

TEST(Outcomes, MoreExamplesThanMeasuredAreRefused) {
  const Outcomes o = made_up(5, 0.5, 6);
  EXPECT_THROW(score_of(Metric::exact, o, 6), Failure);
  EXPECT_THROW(influences(Metric::bleu, o, 6), Failure);
  EXPECT_TRUE(std::isnan(score_of(Metric::accuracy, o, 0)));
}

}  // namespace
}  // namespace attnkit::core::search
