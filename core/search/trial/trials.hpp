// The work of a worker process: it opens a data set, then gives one JSON reply to each JSON request.
#pragma once

#include <attnkit/attnkit.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/search/trial/cost_trial.hpp"
#include "core/search/trial/data_set.hpp"
#include "core/search/trial/quality_trial.hpp"

namespace attnkit::core::search {

// {"id", "ok": true, "result": work()}, or {"id", "ok": false, "error": {kind, message}} of what it throws.  kind is
// "memory" (also of std::bad_alloc), "refused" (a manifest, a mechanism or a model that does not do what is asked),
// "data", "numerical" or "internal".
nlohmann::json reply_to(const nlohmann::json& request, const std::function<nlohmann::json()>& work);

// One thread at a time; one per process, as cost trials watch the memory of the process.
class Trials {
 public:
  // {"dir", "toml", "plugin_path", "threads", "data", "test"}: toml is the model as it is; its vocabularies
  // tokenise the data.  plugin_path and test may be absent; threads counts from 1, 1 if absent. Throws Error and
  // Failure; use reply_to.
  // read_audio: for models that take speech.
  explicit Trials(const nlohmann::json& open, const ReadAudio& read_audio = {});
  Trials(const Trials&) = delete;
  Trials& operator=(const Trials&) = delete;

  // The result of "open".
  nlohmann::json opened() const;
  // The whole reply to one of "describe", "quality", "decode" and "cost".
  nlohmann::json answer(const nlohmann::json& request);

 private:
  const Model& model_of(const std::string& toml);
  nlohmann::json describe(const nlohmann::json& request) const;
  nlohmann::json quality(const nlohmann::json& request);
  nlohmann::json greedy(const nlohmann::json& request);

  const std::string dir_;
  const Runtime runtime_;
  const std::string own_toml_;  // of the model as it is
  std::string toml_;            // of model_
  std::optional<Model> model_;
  const TaskFacts facts_;
  const DataSet data_, test_;          // test_ may be empty
  const std::vector<int64_t> bounds_;  // of the length buckets
  QualityTrial quality_, test_quality_;
  CostTrial cost_;
};

}  // namespace attnkit::core::search
