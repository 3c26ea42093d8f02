// What a model costs beside a baseline: speed, latency and memory of one session at several lengths.
#pragma once

#include <attnkit/attnkit.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/search/data_set.hpp"
#include "core/search/forced_session.hpp"

namespace attnkit::search {

struct CostRequest {
  std::string toml, baseline;    // manifests; max_length must hold the lengths
  std::vector<int64_t> lengths;  // tokens of the source and of the target
  int repetitions = 5;
  size_t real = 0;      // pairs of the data set to decode as they are; 0: none
  bool prefill = true;  // time it; else it is only what decoding starts from
};

// One thread at a time.  runtime, data and facts must outlive it.
//
// Tokens are forced, so that every model does the same work: random ones, or those of the references.  The model and
// the baseline take turns within a repetition and swap places from one to the next, after one run of each that does not
// count; ratios are of the two throughputs of one repetition.  The baseline beside itself is timed once and has 1.
class CostTrial {
 public:
  CostTrial(const Runtime& runtime, std::string dir, const DataSet& data, const Facts& facts)
      : runtime_(runtime), dir_(std::move(dir)), data_(data), facts_(facts) {}

  // The document of the worker protocol.  At a length L a model with a decoder reads a source of L tokens (where it has
  // an encoder) and writes L - S tokens in one call: prefill; then, in every repetition from a copy of that session,
  // S = min(32, L / 2) single ones: decode (from the median of a repetition), latency.  An encoder alone has prefill
  // only.  Throughputs are tokens of source and target per second, medians over repetitions; latencies are seconds over
  // all single tokens.  Prefills that take long are repeated less ("prefill_repetitions"; 0: one run of each, that of
  // the memory).  peak_bytes: growth of the process's resident memory in one run of a model that has not run before,
  // null where the system does not tell.  A length that the model or the baseline refuses gives {length, refused}; so
  // does "real". The baseline is kept for the next request.  Throws Error (manifests) and Failure (usage: no such
  // request).
  nlohmann::json run(const CostRequest& request);

 private:
  // A session at one length and what making it took, or why it cannot be.
  struct Start {
    ForcedTokens tokens;
    std::unique_ptr<ForcedSession> session;
    std::optional<uint64_t> peak;
    std::string refused;
  };
  struct Baseline {
    std::string toml;
    std::unique_ptr<Model> model;
    std::map<int64_t, Start> starts;  // kept: the prefill of a long length takes long
  };
  const Ids& ordinary(const Model& model, Side side);
  Ids random_ids(const Model& model, Side side, int64_t n);
  ForcedTokens tokens_of(const Model& model, int64_t length);
  Start start(const Model& model, int64_t length, std::optional<uint64_t>& before);
  void open_baseline(const CostRequest& request);
  nlohmann::json at(const Model& model, int64_t length, const CostRequest& request, std::optional<uint64_t>& before);
  void time_prefill(const Model& model, const Start& own, const Start& other, const CostRequest& request,
                    nlohmann::json& entry) const;
  void time_steps(const Start& own, const Start& other, const CostRequest& request, nlohmann::json& entry) const;
  nlohmann::json real(const Model& model, const CostRequest& request) const;
  double whole_seconds(const Model& model, const std::vector<ForcedTokens>& inputs) const;

  const Runtime& runtime_;
  const std::string dir_;
  const DataSet& data_;
  const Facts& facts_;
  std::optional<Baseline> baseline_;
  std::map<Side, Ids> ordinary_;  // ids that are no special tokens
};

}  // namespace attnkit::search
