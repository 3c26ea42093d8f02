// Replays races from recorded measurements: what a search would have answered had its examples and timings come
// otherwise.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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

inline ReplayTable replay(const Recorded& recorded, Settings settings, Resampling resampling, int runs, uint64_t seed) {
  const size_t count = recorded.ids.size(), n = recorded.examples();
  const auto std_bench_of = [&](const std::vector<Outcomes>& outcomes) {
    std::vector<double> scores;
    for (const size_t h : recorded.homogeneous) scores.push_back(score_of(settings.metric, outcomes[h], n));
    return sample_deviation(scores);
  };
  const Comparison truth(settings, std_bench_of(recorded.outcomes), recorded.outcomes[recorded.baseline], n);
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i)
    values.push_back(
        truth.standing({&recorded.outcomes[i], recorded.speeds[i], recorded.memory[i]}, 0).value.value_or(0));
  const size_t best = static_cast<size_t>(std::ranges::max_element(values) - values.begin());
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
    std::vector<Outcomes> outcomes(count);
    for (size_t i = 0; i < count; ++i) {
      outcomes[i].resize(n);
      for (size_t e = 0; e < n; ++e) outcomes[i].set(e, 1, recorded.outcomes[i].right[drawn[e]], 0);
    }
    std::vector<std::vector<double>> speeds(count);
    std::vector<int64_t> examples(count, 0);
    RaceTrack track;
    for (int64_t end = settings.screen; end < static_cast<int64_t>(n); end *= 2) track.rungs.push_back(end);
    track.rungs.push_back(static_cast<int64_t>(n));
    track.blocks = settings.blocks;
    track.max_blocks = settings.max_blocks;
    track.baseline = &outcomes[recorded.baseline];
    track.std_bench = std_bench_of(outcomes);
    track.measure = [&](const std::vector<size_t>& left, int64_t to, int blocks) {
      for (const size_t i : left) {
        examples[i] = std::max(examples[i], to);
        while (speeds[i].size() < static_cast<size_t>(blocks))
          speeds[i].push_back(i == recorded.baseline ? 1 : recorded.speeds[i][random() % recorded.speeds[i].size()]);
      }
    };
    track.racer = [&](size_t i) { return Racer{&outcomes[i], speeds[i], recorded.memory[i]}; };
    const RaceResult result = race(settings, track, count);
    table.covered += std::ranges::count(result.top, best) > 0;
    const double won = result.top.empty() ? 0 : values[result.top.front()];
    table.close += won >= 0.99 * values[best];
    table.regret += (1 - won / values[best]) / runs;
    table.tied += static_cast<double>(result.top.size()) / runs;
    for (size_t i = 0; i < count; ++i) {
      table.examples += static_cast<double>(examples[i]) / static_cast<double>(n * count) / runs;
      table.blocks += static_cast<double>(speeds[i].size()) / static_cast<double>(count) / runs;
    }
  }
  return table;
}

}  // namespace attnkit::core::search
