// Runs the trials that a search asks for, each once: what the journal has is taken from there.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/search/journal.hpp"
#include "core/search/manifest_text.hpp"
#include "core/search/ranking.hpp"
#include "core/search/worker/worker_pool.hpp"

namespace attnkit::core::search {

struct LoadedMechanism {
  std::string name, file;
};

// Identifies what a journal's trials were measured on; another search may use them only when all of it is the same.
// Digests of the manifest (but for [search] and the placement, which is in it where vectors are compared with those of
// the model as it is), of the files that it and its weights' index name, of the data sets, of the plugins, of the
// worker's program and of libattnkit; what timings depend on.  The strategy, the rank and the limits are not in it: a
// journal serves any.  cpu: the processor's name.  Throws Failure (data): a file that cannot be read, named.
nlohmann::json identity_of(const ManifestText& manifest, const Space& space, const Settings& settings,
                           const WorkerCommand& command, const std::vector<LoadedMechanism>& mechanisms,
                           const std::string& cpu);

// "expects" of a request to open, of an identity: what a worker on another machine must have the same.
nlohmann::json expectations(const ManifestText& manifest, const nlohmann::json& open, const nlohmann::json& identity);

// Called as trials end.
struct Progress {
  std::string stage;  // "quality", "cost", ...
  size_t done = 0, total = 0;
  std::string latest;  // the trial that ended: a placement's id, or a block's choice
  std::string best;    // the leader so far, with its rank; empty while there is none
};

struct Host {
  std::function<void(const Progress&)> progress;  // may be empty
  std::function<bool()> stop;                     // asked often; true: finish the trials in flight and throw
};

enum class Timing {
  whole,  // prefill and decoding at lengths up to Settings::length, and of what is ranked the prefill alone
  beyond  // one length beyond it, a trial by itself: what fails there is noted in Record::untimed, no more
};

// The noise of timings: throughputs of the baseline, as a second model of its manifest and as all others are
// timed beside it.
struct Noise {
  std::vector<double> ratios;  // of the baseline to itself
  // By block and host ("" is this machine) the baseline's median tokens per second.
  std::map<std::pair<int, std::string>, double> speeds;
  double load = 0;  // of the machine when the search began, 1-minute average; -1: unknown
};

class TrialRunner {
 public:
  // command.cpu says on which of its hosts timings are made; the other trials run on all of them.
  TrialRunner(const Settings& settings, const Space& space, const ManifestText& manifest, const WorkerCommand& command,
              Journal& journal, const Host& host);

  // The worker's answer to "open": kind, lists, buckets.  Starts the first worker.
  const nlohmann::json& opened() const { return opened_; }

  // Numbers of examples that quality is measured on: the screening's, twice as many, and so on to all.
  const std::vector<int64_t>& rungs() const { return rungs_; }

  // Descriptions of placements at lengths; a placement's record takes its refusal.  "result" of the worker by record.
  void describe(const std::vector<Record*>& records, const std::vector<int64_t>& lengths, int64_t max_length,
                const std::function<void(Record&, const nlohmann::json&)>& take);
  // The first `examples`: one of rungs().
  void quality(const std::vector<Record*>& records, int64_t examples);
  // Times the baseline against itself, before anything else.
  void noise();
  // Block number `block` of the ranked costs, where a placement has none: a fresh worker process, one of each host,
  // times each of them, the baseline, and the baseline against itself, in shuffled order.  A trial times a placement
  // and the baseline on one host.
  void block(const std::vector<Record*>& records, Record& baseline, int block);
  const Noise& noise_found() const { return noise_; }
  // Times one placement after another, nothing beside them.  real: examples of the data set to time as they are.
  void cost(const std::vector<Record*>& records, const std::vector<int64_t>& lengths, Timing timing, int real = 0);
  // The test set: teacher-forced, or decoded greedily for bleu; `decoded` are decoded greedily whatever the metric.
  void test(const std::vector<Record*>& records, const std::vector<Record*>& decoded);

  // The journal's list of what samplers proposed; a placement of choices that the space lacks is left out.
  void keep_proposals(const std::vector<Record*>& records);
  std::set<Placement> proposals() const;

  std::function<std::string(const Record& changed)> best;  // for progress; called after each trial

 private:
  struct Task {
    Record* record;
    std::string key;  // in the journal
    nlohmann::json request;
    std::function<void(const nlohmann::json&)> take;
    std::function<void(const std::string& reason)> fail = {};  // empty: the record takes its status and its reason
  };
  void run(const std::string& stage, WorkerPool& pool, const std::vector<Task>& tasks);
  void take_costs(Record& record, const nlohmann::json& result) const;
  void take_block(Record& record, const nlohmann::json& at) const;
  nlohmann::json quality_request(const Record& record, const char* split, std::pair<int64_t, int64_t> range) const;
  Task itself(Record& record, const std::string& key, int block);
  std::string toml_of(const Placement& placement, const std::vector<int64_t>& lengths = {}) const;

  const Settings& settings_;
  const Space& space_;
  const ManifestText& manifest_;
  Journal& journal_;
  const Host& host_;
  const WorkerCommand timing_;
  WorkerPool pool_;
  Noise noise_;
  nlohmann::json opened_;
  std::vector<int64_t> rungs_;
};

}  // namespace attnkit::core::search
