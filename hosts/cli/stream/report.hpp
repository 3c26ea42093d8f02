// What simultaneous decoding gave: quality, latency, and what it cost.
#pragma once

#include "hosts/cli/stream/decode.hpp"

namespace attnkit::cli {

struct StreamReport {
  StreamSetup setup;
  bool speech = false;  // lengths and delays are milliseconds, not words
  std::vector<Input> inputs;
  std::vector<Streamed> results;
  std::vector<bool> exact;  // by input, where there are references
  double bleu = 0;
  double seconds = 0;
};

// Compares outputs with references, spelled as the vocabulary spells them; nothing without references.
void score(const Model& model, StreamReport& report);

// description: "attnkit.model-description/1".
Json stream_json(const StreamReport& report, const Json& description);  // "attnkit.stream/1"
std::string stream_text(const StreamReport& report, const Json& description);

}  // namespace attnkit::cli
