// A whole search: probes what mechanisms accept, fixes the scale of quality, explores, races what was found, and tests
// the top group.
//
// settings and space say what is asked; strategy, or sampler, proposes placements; trial_runner has each measured in a
// worker process (worker/, which answers as trial/ says) and keeps it in the journal; race says who is measured further
// and who is in the top group, ranking in what order, and result writes it down.
#pragma once

#include <algorithm>

#include "core/search/race.hpp"
#include "core/search/ranking.hpp"
#include "core/search/strategy.hpp"
#include "core/search/trial_runner.hpp"

namespace attnkit::core::search {

// A choice that a mechanism, or the weights, refuse in a role.
struct RefusedChoice {
  uint32_t role = 0;
  int choice = 0;
  std::string reason;
};

// One search; one thread.  After run() the accessors hold what result documents are made of.
class Search {
 public:
  // The references must outlive the search.
  Search(Settings settings, Space space, const ManifestText& manifest, const WorkerCommand& command, Journal& journal,
         const Host& host);

  // Throws Failure: usage (nothing left to choose from), manifest (the baseline is refused), data (a full disk),
  // interrupted (the journal has every finished trial; a search that resumes it goes on from there).
  void run();

  const Settings& settings() const { return settings_; }
  const Space& space() const { return space_; }
  const Declared& declared() const { return declared_; }
  const nlohmann::json& opened() const { return runner_.opened(); }
  std::optional<double> std_bench() const { return std_bench_; }
  const std::vector<RefusedChoice>& refused() const { return refused_; }
  const Record& baseline() const { return *baseline_; }
  const std::vector<Record*>& homogeneous() const { return homogeneous_; }
  // By the first `examples`; without a number by all that were measured.
  std::vector<Ranked> ranking(int64_t examples = std::numeric_limits<int64_t>::max()) const;
  // The winner first, then what is not worse than it with confidence; empty: no placement is within the limits, or none
  // was measured.
  const std::vector<Record*>& top() const { return top_; }
  bool is_top(const Record& record) const { return std::ranges::count(top_, &record) > 0; }
  // Of the top group, those that are timed at every length.
  bool is_finalist(const Record& record) const {
    return std::ranges::find(top_, &record) - top_.begin() <
           std::min<std::ptrdiff_t>(settings_.finalists, std::ssize(top_));
  }
  const Record* winner() const { return top_.empty() ? nullptr : top_.front(); }
  const Seen& seen() const { return seen_; }
  const std::vector<RaceStage>& stages() const { return stages_; }
  const Noise& noise() const { return runner_.noise_found(); }
  // Examples of the last stage; a placement with fewer was dropped.
  int64_t max_examples() const { return runner_.rungs().back(); }
  // Compares placements on the first n examples.
  Comparison comparison(int64_t examples) const {
    return {settings_, std_bench_, baseline_->outcomes, static_cast<size_t>(examples)};
  }
  Racer racer(const Record& record) const { return racer_of(record, input(max_examples())); }
  int64_t examples(const char* split) const { return runner_.opened()["lists"].value(split, int64_t{0}); }

 private:
  void probe();
  void probe_length();
  void scale();
  void explore();
  void run_race();
  bool finish();
  void measure(const std::vector<Record*>& records, int64_t examples, int blocks);
  Record* record_of(const Placement& placement);
  std::vector<Outcome> outcomes(const std::vector<const Record*>& asked) const;
  RankingInput input(int64_t examples) const { return {settings_, declared_, *baseline_, std_bench_, examples}; }
  std::string leader(const Record& changed);

  Settings settings_;
  Space space_;
  const std::string log_path_;
  const Host& host_;
  TrialRunner runner_;
  Declared declared_;
  std::deque<Record> records_;  // in the order they were proposed
  std::map<Placement, Record*> by_placement_;
  Record* baseline_ = nullptr;
  std::vector<Record*> homogeneous_, top_;
  std::vector<RaceStage> stages_;
  Seen seen_;
  std::vector<RefusedChoice> refused_;
  std::optional<double> std_bench_;
  Leader leader_;
};

}  // namespace attnkit::core::search
