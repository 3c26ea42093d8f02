// One input after the other, read and written by turns.
#pragma once

#include "hosts/cli/decode/decode.hpp"
#include "hosts/cli/io/outputs.hpp"
#include "hosts/cli/stream/events.hpp"
#include "hosts/cli/stream/source.hpp"

namespace attnkit::cli {

struct Streamed {
  std::string output;
  size_t reads = 0, made = 0;  // units read; tokens written, </s> included
  bool finished = true;        // </s> was reached
  double seconds = 0;          // that computing took until the last token
  stream::LatencyLog log;
  uint64_t state_bytes = 0, encoded_again = 0, predicted_again = 0, keys_replayed = 0;  // what the session says at last
  LengthUse length;
};

class Streamer {
 public:
  Streamer(const Model& model, const Facts& facts, const StreamSetup& setup, EventLines& events, Outputs& outputs);

  // index: of the input, the next one after the last.  Throws Failure: data (the source cannot grow here, lengths),
  // numerical, interrupted.
  Streamed run(size_t index, const Input& input);

 private:
  struct Watch;
  void decode(Watch& watch, StreamSource& source, const Input& input, Streamed& result);

  const Model& model_;
  const Facts& facts_;
  const StreamSetup& setup_;
  EventLines& events_;
  Outputs& outputs_;
};

}  // namespace attnkit::cli
