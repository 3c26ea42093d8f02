#include "core/base/decoding/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

const std::vector<float> scores = {0.5f, 2.0f, -1.0f, 1.0f, -3.0f};

Sampling at(double temperature) {
  Sampling s;
  s.temperature = temperature;
  s.seed = 5;
  return s;
}

std::map<int32_t, int> counts(const Sampling& sampling, const std::vector<float>& of, int draws = 20000) {
  std::map<int32_t, int> all;
  Sampler sampler(sampling);
  for (int i = 0; i < draws; ++i) ++all[*sampler.draw(of)];
  return all;
}

// Pearson's statistic of 5 counts is above 23.5 once in 10,000.
void expect_frequencies(const std::map<int32_t, int>& seen, const std::map<int32_t, double>& weights,
                        int draws = 20000) {
  double sum = 0, statistic = 0;
  for (const auto& [id, weight] : weights) sum += weight;
  for (const auto& [id, weight] : weights) {
    const double wanted = draws * weight / sum, got = seen.contains(id) ? seen.at(id) : 0;
    statistic += (got - wanted) * (got - wanted) / wanted;
  }
  EXPECT_LT(statistic, 23.5);
  for (const auto& [id, n] : seen) EXPECT_TRUE(weights.contains(id)) << id;
}

TEST(Sampler, WithoutATemperatureIsTheBestToken) {
  EXPECT_EQ(counts({}, scores), (std::map<int32_t, int>{{1, 20000}}));
}

TEST(Sampler, DrawsByTheSoftmaxOfTheScores) {
  std::map<int32_t, double> one, hot;
  for (int32_t i = 0; i < 5; ++i) one[i] = std::exp(scores[i]), hot[i] = std::exp(scores[i] / 2.5);
  expect_frequencies(counts(at(1), scores), one);
  expect_frequencies(counts(at(2.5), scores), hot);
}

// As of all scores, of which some are equal, or suppressed, or so low that their weight is 0; also where tokens that
// were there are lowered, until these are all of the highest.
TEST(Sampler, DrawsTheSameFromTheHighestAlone) {
  const float none = -std::numeric_limits<float>::infinity();
  std::vector<float> all;
  for (int i = 0; i < 300; ++i) all.push_back(i % 7 == 0 ? none : static_cast<float>(i * 37 % 50) / 8 - 2);
  all[100] = all[200] = 9;
  std::vector<Ranked> ranked;
  for (int32_t i = 0; i < 300; ++i) ranked.push_back({i, all[static_cast<size_t>(i)]});
  rank(ranked);
  for (const int64_t k : {1, 2, 40, 290})
    for (const double p : {1.0, 0.6})
      for (const double temperature : {0.0, 0.01, 0.8, 5.0})
        for (const auto& [penalty, no_repeat] : {std::pair{1.0, 0}, {1.5, 0}, {1.0, 1}, {1.0, 2}, {3.0, 3}}) {
          Sampling s = at(temperature);
          s.top_k = k;
          s.top_p = p;
          s.repetition_penalty = penalty;
          s.no_repeat = no_repeat;
          Sampler of_all(s), of_highest(s);
          const int64_t from = of_highest.draws_from();
          EXPECT_EQ(from, temperature == 0 ? 1 : k);
          for (int i = 0; i < 270; ++i) {
            const int64_t n = std::min<int64_t>(300, std::max<int64_t>(from, 2) + of_highest.lowers());
            ASSERT_EQ(of_highest.draw({ranked.begin(), ranked.begin() + n}), of_all.draw(all)) << i;
          }
        }
  Sampling s = at(1);
  s.top_k = 2;
  EXPECT_EQ(Sampler(s).draw(std::vector<Ranked>{{3, none}, {4, none}}), 3);
  EXPECT_EQ(Sampler(at(1)).draws_from(), 0);
  s.repetition_penalty = 0.5;  // raises what was there
  EXPECT_EQ(Sampler(s).draws_from(), 0);
}

TEST(Sampler, KeepsTheBest) {
  Sampling s = at(1);
  s.top_k = 2;
  expect_frequencies(counts(s, scores), {{1, std::exp(2.0)}, {3, std::exp(1.0)}});
  s.top_k = 1;
  EXPECT_EQ(counts(s, scores).size(), 1u);
  s.top_k = 9;
  EXPECT_EQ(counts(s, scores).size(), 5u);
}

TEST(Sampler, KeepsTheBestThatHaveAProbabilityTogether) {
  // Probabilities 0.6, 0.22, 0.135, 0.03, 0.004.
  Sampling s = at(1);
  s.top_p = 0.5;
  EXPECT_EQ(counts(s, scores), (std::map<int32_t, int>{{1, 20000}}));
  s.top_p = 0.8;
  expect_frequencies(counts(s, scores), {{1, std::exp(2.0)}, {3, std::exp(1.0)}});
  s.top_p = 0.9;
  expect_frequencies(counts(s, scores), {{1, std::exp(2.0)}, {3, std::exp(1.0)}, {0, std::exp(0.5)}});
  s.top_p = 0;
  EXPECT_EQ(counts(s, scores).size(), 1u);
  s.top_p = 0.65;
  s.top_k = 2;  // which leaves 0.73 and 0.27
  EXPECT_EQ(counts(s, scores).size(), 1u);
}

TEST(Sampler, PenalisesWhatWasThere) {
  Sampling s;
  s.repetition_penalty = 4;
  Sampler sampler(s);
  EXPECT_EQ(sampler.draw(scores), 1);  // 2, from now on 0.5
  EXPECT_EQ(sampler.draw(scores), 3);  // 1, from now on 0.25
  EXPECT_EQ(sampler.draw(scores), 0);  // 0.5, the first of two equal ones
  EXPECT_EQ(sampler.draw(scores), 1);
  Sampler prompted(s);
  prompted.saw(std::vector<int32_t>{1, 3});
  EXPECT_EQ(prompted.draw(scores), 0);
  // Below 0 a penalty lowers as well.
  Sampler below(s);
  below.saw(std::vector<int32_t>{0});
  EXPECT_EQ(below.draw(std::vector<float>{-1, -2}), 1);
}

TEST(Sampler, WhatMustComeMayHaveBeenThere) {
  constexpr float never = -std::numeric_limits<float>::infinity();
  Sampling once;
  once.no_repeat = 1;
  Sampler sampler(once);
  sampler.saw(std::vector<int32_t>{3});
  EXPECT_EQ(sampler.draw(std::vector<float>{never, never, never, -5, never}), 3);
  EXPECT_EQ(sampler.draw(std::vector<float>{never, -9, never, -5, never}), 1);
  EXPECT_EQ(sampler.draw(std::vector<float>{never, -9, never, -5, never}), 3) << "nothing else may come";
  EXPECT_EQ(sampler.draw(std::vector<Ranked>{{3, -5}, {1, -9}, {0, never}}), 3);
}

TEST(Sampler, ForbidsWhatTheFirstTokensBegan) {
  Sampling pairs;
  pairs.no_repeat = 2;
  Sampler sampler(pairs);
  sampler.saw(std::vector<int32_t>{3, 1, 3});
  EXPECT_EQ(sampler.draw(std::vector<float>{0, 9, 5, -1}), 2);
}

TEST(Sampler, OfEqualTokensTheFirstAreTheBest) {
  Sampling s = at(1);
  s.top_p = 0.39;
  expect_frequencies(counts(s, {1, 1, 1, 1, 1}), {{0, 1}, {1, 1}});
}

TEST(Sampler, RepeatsItselfForASeedAndAStream) {
  const auto drawn = [](uint64_t seed, uint64_t stream) {
    Sampling s = at(1);
    s.seed = seed;
    Sampler sampler(s, stream);
    std::vector<int32_t> ids;
    for (int i = 0; i < 40; ++i) ids.push_back(*sampler.draw(scores));
    return ids;
  };
  EXPECT_EQ(drawn(1, 2), drawn(1, 2));
  EXPECT_NE(drawn(1, 2), drawn(2, 2));
  EXPECT_NE(drawn(1, 2), drawn(1, 3));
}

TEST(Sampler, NeverDrawsWhatIsImpossibleAndSaysWhereScoresAreNoNumbers) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  expect_frequencies(counts(at(1), {-inf, 1, -inf, 1}), {{1, 1}, {3, 1}});
  EXPECT_EQ(counts(at(1), {0, inf}), (std::map<int32_t, int>{{1, 20000}}));
  EXPECT_EQ(counts(at(1), {-inf, -inf}), (std::map<int32_t, int>{{0, 20000}}));
  Sampler sampler(at(1));
  EXPECT_EQ(sampler.draw(std::vector<float>{0, NAN}), std::nullopt);
}

TEST(Sampler, RefusesWhatIsOutOfBounds) {
  for (const double bad : {-1.0, std::nan(""), 1e9}) EXPECT_THROW(Sampler{at(bad)}, Error);
  Sampling s;
  s.top_p = 1.5;
  EXPECT_THROW(Sampler{s}, Error);
  s = {};
  s.repetition_penalty = 0;
  EXPECT_THROW(Sampler{s}, Error);
}

}  // namespace
}  // namespace attnkit::core
