// Runs the trials that a search asks for, each once: what the journal has is taken from there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/search/journal.hpp"
#include "core/search/manifest_edit.hpp"
#include "core/search/record.hpp"
#include "core/search/settings.hpp"
#include "core/search/worker_pool.hpp"

namespace attnkit::search {

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

class TrialRunner {
 public:
  TrialRunner(const Settings& settings, const Space& space, const ManifestText& manifest, const WorkerCommand& command,
              Journal& journal, const Host& host);

  // The worker's answer to "open": kind, lists, source_tokens.  Starts the first worker.
  const nlohmann::json& opened() const { return opened_; }

  // Lists that quality is measured on: the screening's, twice as many, and so on to all.
  const std::vector<int64_t>& rungs() const { return rungs_; }

  // Descriptions of placements at lengths; a placement's record takes its refusal.  "result" of the worker by record.
  void describe(const std::vector<Record*>& records, const std::vector<int64_t>& lengths, int64_t max_length,
                const std::function<void(Record&, const nlohmann::json&)>& take);
  // The first `lists` lists: one of rungs().
  void quality(const std::vector<Record*>& records, int64_t lists);
  // Decoding at one length, one placement after another, nothing beside them.
  void screen_cost(const std::vector<Record*>& records, int64_t length);
  // The same with prefill at several lengths up to Settings::length, and on `real` lists of the data set; replaces what
  // was measured before.
  void cost(const std::vector<Record*>& records, const std::vector<int64_t>& lengths, int real);
  // One length beyond Settings::length, a trial by itself: what fails there is noted in Record::untimed, no more.
  void cost_beyond(const std::vector<Record*>& records, int64_t length);
  // Greedy decoding of the first `lists` lists of "data" or "test".
  void decode(const std::vector<Record*>& records, const std::string& split, int64_t lists);

  std::function<std::string(const Record& changed)> best;  // for progress; called after each trial

 private:
  struct Task {
    Record* record;
    std::string key;  // in the journal
    nlohmann::json request;
    std::function<void(const nlohmann::json&)> take;
    std::function<void(const std::string& reason)> fail;  // empty: the record takes its status and its reason
  };
  void run(const std::string& stage, WorkerPool& pool, std::vector<Task> tasks);
  Task cost_task(Record* record, const std::vector<int64_t>& lengths, int real, bool prefill) const;
  void take_costs(Record& record, const nlohmann::json& result) const;
  static void take(const Task& task, const nlohmann::json& entry);
  std::string encoder_of(const Record& record) const;
  std::string toml_of(const Record& record, const std::vector<int64_t>& lengths) const;

  const Settings& settings_;
  const Space& space_;
  const ManifestText& manifest_;
  Journal& journal_;
  const Host& host_;
  WorkerPool pool_, timing_;
  nlohmann::json opened_;
  std::vector<int64_t> rungs_;
};

}  // namespace attnkit::search
