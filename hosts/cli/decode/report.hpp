// What a run gave: results, and the summary that ends it.
#pragma once

#include <optional>

#include "hosts/cli/decode/decode.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/decode/score.hpp"

namespace attnkit::cli {

struct Result {
  std::string text;
  size_t made = 0;  // tokens
  bool exact = false;
  bool finished = true;  // not cut off at the limit
  LengthUse length;
  std::optional<Score> score;
  std::optional<Label> label;
};

struct Report {
  std::vector<Input> inputs;
  std::vector<Result> results;
  bool decoder = true;
  uint32_t beams = 1;
  size_t tokens = 0;
  double seconds = 0;
  std::optional<double> speech_seconds;  // of the inputs, where they are recordings
  LargestSession largest;
};

// "x of speech: real-time factor 0.02" of as many seconds of computing.
std::string real_time_text(double speech_seconds, double computing_seconds);

// "encoder.self relu; decoder.self relu 1, softmax 2..3": what sits where, of "attnkit.model-description/1".
std::string mechanisms_text(const Json& description);

// Members "target_length" and "beyond_target_length" of one output, where a mechanism was told a length.
void add_length(const LengthUse& length, Json& to);

// A line about outputs that are longer than mechanisms were told; empty: none is.
struct BeyondLength {
  uint64_t tokens = 0;
  size_t outputs = 0;
  void add(const LengthUse& length) {
    tokens += length.beyond;
    outputs += length.beyond > 0;
  }
  std::string text(size_t all) const;
};

// description: "attnkit.model-description/1".
Json report_json(const Report& report, const Json& description);  // "attnkit.run/1"
std::string report_text(const Report& report, const Json& description);

}  // namespace attnkit::cli
