// Costs of a model beside a baseline: speed, latency and memory of one session at several lengths.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "core/search/trial/data_set.hpp"

namespace attnkit::core::search {

struct CostRequest {
  std::string toml, baseline;    // manifests; max_length must hold the lengths
  std::vector<int64_t> lengths;  // tokens of the source and of the target
  int repetitions = 5;
  size_t real = 0;      // pairs of the data set to decode as they are; 0: none
  bool prefill = true;  // time it; else it is only what decoding starts from
  bool itself = false;  // a second model of the baseline's manifest is timed beside it like any other
};

// One thread at a time.  runtime, data and facts must outlive it.
//
// Tokens are forced, so that every model does the same work: random ones, or those of the references.  The model and
// the baseline take turns within a repetition and swap places from one to the next, after one run of each that does not
// count; ratios are of the two throughputs of one repetition.  The baseline beside itself is timed once and has 1.
class CostTrial {
 public:
  CostTrial(const Runtime& runtime, std::string dir, const DataSet& data, const TaskFacts& facts);
  ~CostTrial();

  // The document of the worker protocol.  At a length L a model with a decoder reads a source of L tokens (where it has
  // an encoder) and writes L - S tokens in one call: prefill; then, in every repetition from a copy of that session,
  // S = min(32, L / 2) single ones: decode (from the median of a repetition), latency; baseline_decode beside it.  An
  // encoder alone has prefill only.  Throughputs are tokens of source and target per second, medians over repetitions;
  // latencies are seconds over all single tokens.  Prefills that take long are repeated less ("prefill_repetitions"; 0:
  // one run of each, that of the memory).  peak_bytes: growth of the process's resident memory in one run of a model
  // that has not run before, null where the system does not say.  A length that the model or the baseline refuses gives
  // {length, refused}; so does "real". The baseline is kept for the next request.  Throws Error (manifests) and Failure
  // (usage: no such request).
  nlohmann::json run(const CostRequest& request);

 private:
  struct Baseline;

  const Runtime& runtime_;
  const std::string dir_;
  const DataSet& data_;
  const TaskFacts& facts_;
  std::unique_ptr<Baseline> baseline_;
};

}  // namespace attnkit::core::search
