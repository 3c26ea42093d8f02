// The measurements of placements, and which placement is best: limits first, then the rank asked for, then Pareto
// dominance.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/search/race.hpp"
#include "core/search/space.hpp"

namespace attnkit::core::search {

// A quality and what it was measured on.
struct Quality {
  double value = 0;
  int64_t examples = 0;
};

// The measurements of one placement.
struct Record {
  enum class Status { usable, refused, failed };

  Placement placement;
  std::string id;
  Status status = Status::usable;
  std::string reason;  // why not
  // Sums by length bucket, of the examples [first, second) in the data set's order: teacher-forced, of greedy decoding
  // for bleu.
  std::map<std::pair<int64_t, int64_t>, std::vector<QualitySums>> quality;
  Outcomes outcomes, test;             // of the data set; of the test set, where it was measured
  std::vector<nlohmann::json> blocks;  // by timing block at Settings::length: an entry of "at" of the worker's answer
  std::map<int64_t, nlohmann::json> costs;  // by length: such an entry; of several blocks their medians
  std::map<int64_t, std::string> untimed;   // by length: why there are no costs
  nlohmann::json real;                      // the timing on the data set's own lengths
  nlohmann::json greedy;                    // the worker's answer to decoding the test set; null: not asked

  bool usable() const { return status == Status::usable; }
  // Examples measured from the first on, without a gap.
  int64_t examples() const;
  // Sums of the first `examples` by bucket; segments must end there.
  std::vector<QualitySums> sums(int64_t examples) const;
};

// Of the first `examples`; no value: not measured.
std::optional<Quality> quality_of(const Record& record, Metric metric, int64_t examples);
// Its 95 % interval; of bleu by a bootstrap.
Interval interval_of(const Record& record, Metric metric, int64_t examples);

// A number of the costs at a length, if it is there.
std::optional<double> cost_of(const Record& record, int64_t length, const char* key);

struct Ranked {
  const Record* record = nullptr;
  std::optional<Quality> quality;
  std::optional<Quality> baseline_quality;   // of the baseline, on the same examples
  std::optional<double> throughput, memory;  // relative to the baseline
  std::optional<double> rcp, rcp_mem;
  // Its place by them: the value of the rank; infinite where it is better than any value says, or has none.  0 for all
  // where nothing says what quality is worth, so that Pareto dominance decides.
  double order = 0;
  std::string limit;        // the limit that it is beyond, in words; empty: none
  bool pareto = false;      // of those measured on the most examples none is better in quality, throughput and memory
  std::optional<int> rank;  // from 1
};

struct RankingInput {
  const Settings& settings;
  const Declared& declared;
  const Record& baseline;
  std::optional<double> std_bench;  // of scores; no value: fewer than two homogeneous placements could be measured
  int64_t examples =
      std::numeric_limits<int64_t>::max();  // count no more than the first so many, to compare like with like
};

// Returns the value that settings.rank compares, higher is better; no value: unknown for this placement.
std::optional<double> rank_value(const Ranked& ranked, const Settings& settings);

// The placement in a race: unusable when it failed or is beyond a limit whatever more examples may show.
Racer racer_of(const Record& record, const RankingInput& input);

// Returns the standing of one placement: all but pareto and rank, which depend on the others.
Ranked standing(const Record& record, const RankingInput& input);

// The best first; then what is limited, then the others, each in the order of `records`.  Those measured on more
// examples stand before those that a search dropped earlier: the best of many short measurements owes its place to
// luck.
std::vector<Ranked> rank(const std::vector<const Record*>& records, const RankingInput& input);

// The best placement so far: each trial that ends is compared with the leader alone, so that thousands of them stay
// cheap.  One thread.  Pareto fronts are not looked at: where no placement has a rank value, quality decides.
class Leader {
 public:
  // standing: as above.
  Leader(const Settings& settings, std::function<Ranked(const Record&)> standing)
      : settings_(settings), standing_(std::move(standing)) {}

  // `changed` has been measured further.  `all`, which must outlive the leader, is looked through only when it is the
  // leader itself or after restart().  NULL: none can be ranked; valid until the next call.
  const Ranked* update(const Record& changed, const std::deque<Record>& all);

  // The baseline that all are compared with has changed.
  void restart() { is_stale_ = true; }

 private:
  void consider(const Record& record);

  const Settings& settings_;
  std::function<Ranked(const Record&)> standing_;
  std::optional<Ranked> leader_;
  bool is_stale_ = false;
};

}  // namespace attnkit::core::search
