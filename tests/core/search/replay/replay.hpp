// Replays races from recorded measurements: what a search would have answered had its examples and timings come
// otherwise.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/search/race.hpp"

namespace attnkit::core::search {

// Of `attnkit search --thorough`, by record.py: all placements on all examples and in all timing blocks.
struct Recorded {
  std::vector<std::string> ids;
  size_t baseline = 0;
  std::vector<size_t> homogeneous;
  std::vector<Outcomes> outcomes;           // exact match alone
  std::vector<std::vector<double>> speeds;  // by block
  std::vector<double> memory;

  explicit Recorded(const std::string& path) {
    const nlohmann::json json = nlohmann::json::parse(std::ifstream(path));
    baseline = json.at("baseline");
    json.at("homogeneous").get_to(homogeneous);
    for (const auto& p : json.at("placements")) {
      ids.push_back(p.at("id"));
      const std::string exact = p.at("exact");
      Outcomes& o = outcomes.emplace_back();
      o.resize(exact.size());
      for (size_t i = 0; i < exact.size(); ++i) o.set(i, 1, exact[i] == '1', 0);
      speeds.push_back(p.at("speeds"));
      memory.push_back(p.at("memory"));
    }
  }
  size_t examples() const { return outcomes.front().tokens.size(); }
};

enum class Resampling {
  order,     // the same examples in another order: what racing loses against measuring everything
  examples,  // examples drawn with replacement: what the data set leaves open besides
};

struct ReplayTable {
  int runs = 0, covered = 0,
      close = 0;                // the top group has the true best; the winner's true value is within 1 % of the best
  double tied = 0, regret = 0;  // means: the size of the top group, the loss in true value
  double examples = 0, blocks = 0;  // means of what was measured: a share of all examples, blocks per placement
};

// The true rank values: those of everything that was recorded.
struct Truth {
  std::vector<double> values;
  size_t best = 0;

  Truth(const Recorded& recorded, const Settings& settings) : values(values_of(recorded, settings, recorded.outcomes)) {
    best = static_cast<size_t>(std::ranges::max_element(values) - values.begin());
  }
  double share(size_t placement) const { return values[placement] / values[best]; }
  static bool is_close(double share) { return share >= 0.99; }

  static double std_bench(const Recorded& recorded, const Settings& settings, const std::vector<Outcomes>& outcomes) {
    std::vector<double> scores;
    for (const size_t h : recorded.homogeneous)
      scores.push_back(score_of(settings.metric, outcomes[h], outcomes[h].tokens.size()));
    return sample_deviation(scores);
  }
  // By outcomes of all placements, and all timing blocks.
  static std::vector<double> values_of(const Recorded& recorded, const Settings& settings,
                                       const std::vector<Outcomes>& outcomes) {
    const Comparison by(settings, std_bench(recorded, settings, outcomes), outcomes[recorded.baseline],
                        outcomes.front().tokens.size());
    std::vector<double> values;
    for (size_t i = 0; i < outcomes.size(); ++i)
      values.push_back(by.standing({&outcomes[i], recorded.speeds[i], recorded.memory[i]}, 0).value.value_or(0));
    return values;
  }
};

// The outcomes of all placements on these examples.
inline std::vector<Outcomes> outcomes_on(const Recorded& recorded, const std::vector<size_t>& drawn) {
  std::vector<Outcomes> outcomes(recorded.ids.size());
  for (size_t i = 0; i < outcomes.size(); ++i) {
    outcomes[i].resize(drawn.size());
    for (size_t e = 0; e < drawn.size(); ++e) outcomes[i].set(e, 1, recorded.outcomes[i].right[drawn[e]], 0);
  }
  return outcomes;
}

inline ReplayTable replay(const Recorded& recorded, const Settings& settings, Resampling resampling, int runs,
                          uint64_t seed) {
  const size_t count = recorded.ids.size(), n = recorded.examples();
  const Truth truth(recorded, settings);
  std::mt19937_64 random(seed);
  ReplayTable table;
  table.runs = runs;
  for (int run = 0; run < runs; ++run) {
    std::vector<size_t> drawn(n);
    std::iota(drawn.begin(), drawn.end(), size_t{0});
    if (resampling == Resampling::order)
      std::ranges::shuffle(drawn, random);
    else
      for (size_t& d : drawn) d = random() % n;
    const std::vector<Outcomes> outcomes = outcomes_on(recorded, drawn);
    std::vector<std::vector<double>> speeds(count);
    std::vector<int64_t> examples(count, 0);
    RaceTrack track;
    for (int64_t end = settings.screen; end < static_cast<int64_t>(n); end *= 2) track.rungs.push_back(end);
    track.rungs.push_back(static_cast<int64_t>(n));
    track.blocks = settings.blocks;
    track.max_blocks = settings.max_blocks;
    track.baseline = &outcomes[recorded.baseline];
    track.std_bench = Truth::std_bench(recorded, settings, outcomes);
    track.measure = [&](const std::vector<size_t>& left, int64_t to, int blocks) {
      for (const size_t i : left) {
        examples[i] = std::max(examples[i], to);
        while (speeds[i].size() < static_cast<size_t>(blocks))
          speeds[i].push_back(i == recorded.baseline ? 1 : recorded.speeds[i][random() % recorded.speeds[i].size()]);
      }
    };
    track.racer = [&](size_t i) { return Racer{&outcomes[i], speeds[i], recorded.memory[i]}; };
    const RaceResult result = race(settings, track, count);
    table.covered += std::ranges::count(result.top, truth.best) > 0;
    const double won = result.top.empty() ? 0 : truth.share(result.top.front());
    table.close += Truth::is_close(won);
    table.regret += (1 - won) / runs;
    table.tied += static_cast<double>(result.top.size()) / runs;
    for (size_t i = 0; i < count; ++i) {
      table.examples += static_cast<double>(examples[i]) / static_cast<double>(n * count) / runs;
      table.blocks += static_cast<double>(speeds[i].size()) / static_cast<double>(count) / runs;
    }
  }
  return table;
}

// No race: all placements on as many drawn examples, all timings known.  The loss that examples alone leave.
inline ReplayTable measure_all(const Recorded& recorded, const Settings& settings, size_t examples, int runs,
                               uint64_t seed) {
  const Truth truth(recorded, settings);
  std::mt19937_64 random(seed);
  ReplayTable table;
  table.runs = runs;
  for (int run = 0; run < runs; ++run) {
    std::vector<size_t> drawn(examples);
    for (size_t& d : drawn) d = random() % recorded.examples();
    const std::vector<double> found = Truth::values_of(recorded, settings, outcomes_on(recorded, drawn));
    const double won = truth.share(static_cast<size_t>(std::ranges::max_element(found) - found.begin()));
    table.close += Truth::is_close(won);
    table.regret += (1 - won) / runs;
  }
  return table;
}

}  // namespace attnkit::core::search
