// Which placement is best, by what was measured: limits first, then the rank asked for, then Pareto dominance.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/search/declared.hpp"
#include "core/search/record.hpp"

namespace attnkit::search {

struct Ranked {
  const Record* record = nullptr;
  std::optional<Quality> quality;
  std::optional<Quality> baseline_quality;   // of the baseline, on the same lists
  std::optional<double> throughput, memory;  // relative to the baseline
  std::optional<double> rcp, rcp_mem;
  std::string limit;        // the limit that it is beyond, in words; empty: none
  bool pareto = false;      // of those measured on the most lists none is better in quality, throughput and memory
  std::optional<int> rank;  // from 1
};

struct RankingInput {
  const Settings& settings;
  const Declared& declared;
  const Record& baseline;
  std::optional<double> std_bench;  // of scores; no value: fewer than two homogeneous placements could be measured
  int64_t lists =
      std::numeric_limits<int64_t>::max();  // count no more than the first so many, to compare like with like
};

// What settings.rank compares, higher is better; no value: it cannot be said of this placement.
std::optional<double> rank_value(const Ranked& ranked, const Settings& settings);

// What one placement has come to: all but pareto and rank, which depend on the others.
Ranked standing(const Record& record, const RankingInput& input);

// Measured as far as a rank needs, and within the limits.
bool is_rankable(const Ranked& ranked);

// Does it come before another, both rankable?
bool is_before(const Ranked& a, const Ranked& b, const Settings& settings);

// The best first; then what is limited, then the others, each in the order of `records`.  Those measured on more lists
// stand before those that a search dropped earlier: the best of many short measurements owes its place to luck.
std::vector<Ranked> rank(const std::vector<const Record*>& records, const RankingInput& input);

}  // namespace attnkit::search
