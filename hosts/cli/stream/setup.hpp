// What simultaneous decoding is done with: a policy, and a model whose source may grow.
#pragma once

#include <memory>
#include <string>

#include "core/stream/policy.hpp"
#include "core/stream/log.hpp"
#include "hosts/cli/io/inputs.hpp"

namespace attnkit::cli {

struct StreamSetup {
  std::shared_ptr<const stream::Policy> policy;
  stream::Unit unit = stream::Unit::word;
  double word_seconds = 0;  // how long a word of the source lasts
  int64_t chunk_ms = 0;     // of speech that arrives at once; 0: what completes a row of the encoder
  uint32_t limit = 0;
};

// Of --policy (without one, policy is empty), --unit, --word-ms, --chunk-ms and --limit.  Throws Failure (usage).
StreamSetup read_stream_setup(const Arguments& arguments);

// The model of MANIFEST, and in setup.policy what its [stream] says unless --policy did.  A manifest without [stream]
// gets one for a policy that reads by turns.  Throws Failure like open_model; (usage): no policy anywhere, a model that
// does not read one thing and write another, --replay beside a [stream], options for texts where it takes speech or the
// other way round.
Model open_stream_model(const Runtime& runtime, const Arguments& arguments, StreamSetup& setup);

}  // namespace attnkit::cli
