// A whole search: probes what mechanisms accept, fixes the scale of quality, explores, and measures the finalists well.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/search/declared.hpp"
#include "core/search/leader.hpp"
#include "core/search/ranking.hpp"
#include "core/search/strategy.hpp"
#include "core/search/trial_runner.hpp"

namespace attnkit::search {

// A choice that a mechanism, or the weights, refuse in a role.
struct RefusedChoice {
  uint32_t role = 0;
  int choice = 0;
  std::string reason;
};

// One search; one thread.  After run() the accessors hold what result documents are made of.
class Search {
 public:
  // What is borrowed must outlive the search.
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
  std::vector<const Record*> homogeneous() const;
  // By the first `lists` lists; without a number by all that were measured.
  std::vector<Ranked> ranking(int64_t lists = std::numeric_limits<int64_t>::max()) const;
  bool is_finalist(const Record& record) const;
  // The best finalist within the limits; NULL: there is none.
  const Record* winner() const;
  int64_t lists(const char* split) const { return runner_.opened()["lists"].value(split, int64_t{0}); }

 private:
  void probe();
  void probe_lengths();
  void scale();
  void explore();
  void confirm();
  void finish();
  void measure(const std::vector<Record*>& records);
  Record* record_of(const Placement& placement);
  std::vector<Outcome> outcomes(const std::vector<const Record*>& asked) const;
  std::vector<Record*> best(size_t n, int64_t lists) const;
  size_t climbed(int64_t lists) const;
  std::vector<Record*> waiting(int64_t from, int64_t to) const;
  Record* next_finalist() const;
  RankingInput input(int64_t lists) const { return {settings_, declared_, *baseline_, std_bench_, lists}; }
  std::string leader(const Record& changed);

  Settings settings_;
  Space space_;
  TrialRunner runner_;
  Declared declared_;
  std::deque<Record> records_;  // in the order they were proposed
  std::map<Placement, Record*> by_placement_;
  Record* baseline_ = nullptr;
  std::vector<Record*> homogeneous_, finalists_;
  std::vector<RefusedChoice> refused_;
  std::optional<double> std_bench_;
  Leader leader_;
};

}  // namespace attnkit::search
