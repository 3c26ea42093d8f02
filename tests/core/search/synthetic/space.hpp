// A made-up model whose truth is known: what each placement's quality, speed and memory are, and what a measurement of
// them shows.
#pragma once

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "core/search/statistics.hpp"
#include "tests/core/search/strategy_support.hpp"

namespace attnkit::core::search {

// Nine blocks, three in each role.  A choice that is not the baseline's saves time and memory in its block and makes
// answers wrong; half of the pairs of blocks disturb or help each other by what meets there.  In deep models a tenth of
// the triples do so too, which no sum over pairs can say.
class SyntheticModel {
 public:
  SyntheticModel(int choices, uint64_t seed, bool is_deep = false)
      : space(space_of(3, choices)), seed_(seed), is_deep_(is_deep) {
    baseline_ = without_rank(space.baseline);
    std::vector<double> qualities;
    for (const Placement& placement : homogeneous(space)) qualities.push_back(without_rank(placement).quality);
    std_bench_ = sample_deviation(qualities);
  }

  // Ranked by RCP_mem.
  Outcome truth(const Placement& placement) const { return ranked(without_rank(placement)); }

  // As 500 answers, a timing that is off by 2 % and a memory that is off by 1 % show it.
  Outcome measured(const Placement& placement, uint64_t seed) const {
    constexpr int answers = 500;
    std::mt19937_64 random(seed);
    for (int choice : placement) random.seed(random() + static_cast<uint64_t>(choice));
    Outcome outcome = without_rank(placement);
    outcome.quality = std::binomial_distribution(answers, outcome.quality)(random) / static_cast<double>(answers);
    outcome.throughput *= std::exp(std::normal_distribution(0.0, 0.02)(random));
    outcome.memory *= std::exp(std::normal_distribution(0.0, 0.01)(random));
    return ranked(outcome);
  }

  const Space space;

 private:
  Outcome without_rank(const Placement& placement) const {
    double loss = -3, time = 1, memory = 1;  // of the baseline 95 % are right
    for (size_t s = 0; s < placement.size(); ++s) {
      const int c = placement[s];
      if (c > 0) {
        loss += 0.5 * noise(s, c, seed_ + 1);
        time -= 0.05 + 0.04 * noise(s, c, seed_ + 2);
        memory -= 0.04 + 0.05 * noise(s, c, seed_ + 3);
      }
      for (size_t t = 0; t < s; ++t) {
        loss += together(0.5, 9 * s + t, {c, placement[t], 0});
        for (size_t u = 0; is_deep_ && u < t; ++u)
          loss += together(0.1, 81 * s + 9 * t + u, {c, placement[t], placement[u]});
      }
    }
    return {placement, true, 1 / (1 + std::exp(loss)), 1 / time, memory};
  }

  // The joint effects of choices in blocks of which a share disturb each other; more often harm than good.
  double together(double share, size_t blocks, std::array<int, 3> choices) const {
    if (choices == std::array<int, 3>{} || noise(blocks, 0, seed_ + 5) >= share) return 0;
    return 0.6 * (noise(blocks, choices[0] + 32 * choices[1] + 1024 * choices[2], seed_ + 4) - 0.4);
  }

  Outcome ranked(Outcome outcome) const {
    outcome.rank = rcp_mem(outcome.throughput, outcome.quality, baseline_.quality, std_bench_, outcome.memory);
    outcome.usable = outcome.rank.has_value();
    return outcome;
  }

  uint64_t seed_;
  bool is_deep_;
  Outcome baseline_;
  double std_bench_ = 0;
};

}  // namespace attnkit::core::search
