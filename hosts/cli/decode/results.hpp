// The loop over inputs that run and stream share, and the parts of their reports that are the same.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hosts/cli/decode/decode.hpp"
#include "hosts/cli/io/outputs.hpp"

namespace attnkit::cli {

struct Results {
  std::vector<Input> inputs;
  std::vector<Result> all;  // by input
  double seconds = 0;
  Json description;  // "attnkit.model-description/1"

  bool have_references() const { return !inputs.empty() && inputs.front().reference; }
  size_t tokens() const;
  size_t exact() const;
  uint64_t beyond_target_length() const;
};

// Calls work, which gives the result of every input once, in any order; shows the outputs and measures the time; then
// compares with references, both as the vocabulary spells them, so that white space and case do not count.
void run_inputs(const Model& model, Results& results, Outputs& outputs, const std::function<void(const Give&)>& work);

// Members of documents: "blocks"; "results", each with its input, its output and what `more` adds.
void add_blocks(const Results& results, Json& to);
void add_results(const Results& results, Json& to, const std::function<void(size_t index, Json& entry)>& more);
// Of one result: "target_length" and "beyond_target_length", where a mechanism was given a length.
void add_length(const Result& result, Json& to);

// Seconds of speech, and of computing for it.
struct SpeechTime {
  double speech, computing;
  double real_time_factor() const { return computing / speech; }
};

// Lines of summaries: the mechanisms, "encoder.self relu; decoder.self relu 1, softmax 2..3"; then real time, outputs
// that were cut off and outputs beyond the target's length; "exact match 3 of 4 (75.0 %)".
std::string mechanisms_text(const Results& results);
std::string remarks_text(const Results& results, const std::optional<SpeechTime>& time);
std::string exact_text(const Results& results);

}  // namespace attnkit::cli
