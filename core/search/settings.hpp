// The settings of a search.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/search/quality.hpp"
#include "core/search/statistics.hpp"

namespace attnkit::core::search {

enum class StrategyKind { ablation, grid, pareto };
enum class Effort { quick, standard, thorough };
enum class Rank { rcp, rcp_mem, quality, throughput };

// In the order of the enums.
inline const std::vector<std::string> strategy_names = {"ablation", "grid", "pareto"};
inline const std::vector<std::string> effort_names = {"quick", "default", "thorough"};
inline const std::vector<std::string> rank_names = {"rcp", "rcp_mem", "quality", "throughput"};

// Placements beyond a limit are not ranked.  Absent: no limit.
struct Limits {
  std::optional<double> min_quality_ratio;  // to the baseline's quality
  std::optional<uint64_t> max_state;        // bytes a session of Settings::length tokens keeps
  std::optional<double> max_latency;        // seconds a token, median, at Settings::length
};

struct Settings {
  StrategyKind strategy = StrategyKind::grid;
  std::string sampler;  // a command that proposes placements in place of the strategy; empty: none
  bool per_layer = false;
  Effort effort =
      Effort::standard;      // quick: the screening alone; thorough: all examples and blocks for every placement
  double confidence = 0.95;  // that the best placement is in the top group
  Metric metric = Metric::exact;
  Rank rank = Rank::rcp_mem;
  int64_t length = 512;                            // tokens at which costs are ranked
  std::vector<int64_t> lengths = {64, 512, 4096};  // tokens at which finalists are timed
  Limits limits;
  RcpSettings weights;
  int trials = 64;  // placements that strategy pareto or a sampler tries at most
  uint64_t seed = 1;
  std::string data, test;      // paths; test may be empty
  bool test_is_data = false;   // byte for byte
  int64_t screen = 500;        // examples that every placement is tried on
  int finalists = 3;           // of the top group, that are timed at every length, the baseline beside them
  int blocks = 2;              // of timing that every placement gets
  int max_blocks = 16;         // that one gets which cannot be told apart otherwise
  int repetitions = 3;         // of a timing
  int jobs = 2;                // worker processes; timings run alone
  int threads = 1;             // of a worker
  double trial_timeout = 120;  // seconds; of more examples than `screen` longer in proportion
  uint64_t trial_memory = 0;   // bytes that a worker may take; 0: no limit
};

}  // namespace attnkit::core::search
