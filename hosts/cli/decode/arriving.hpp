// Sources that arrive while they are translated: a text, speech from a file, or speech from standard input as it is
// spoken.
#pragma once

#include <functional>
#include <memory>

#include "core/stream/log.hpp"
#include "core/stream/policy.hpp"
#include "hosts/cli/io/inputs.hpp"
#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

using namespace core;

struct StreamSetup {
  std::shared_ptr<const stream::Policy> policy;
  stream::Unit unit = stream::Unit::word;
  double word_seconds = 0;  // duration of a word of the source
  int64_t chunk_ms = 0;     // of speech that arrives at once; 0: what completes a row of the encoder
  uint32_t limit = 0;
};

class ArrivingSource {
 public:
  using Decide = std::function<uint32_t(const attnkit_stream_view&)>;
  using Observe = std::function<void(const attnkit_stream_event&)>;

  virtual ~ArrivingSource() = default;
  virtual bool empty() const { return false; }  // nothing to translate
  // Whether the model has anything to write from after so many units.
  virtual bool ready(int64_t units) const = 0;
  // Reads and writes by turns as decide says, in an empty session; as attnkit_session_simulate.
  virtual Ids decode(Session& session, const Decide& decide, const Observe& observe, uint32_t limit) = 0;
  // Members of an event: the text of a unit that was read, and the time of the source.
  virtual void add_text(const attnkit_stream_event&, Json&) const {}
  virtual void add_time(const attnkit_stream_event& event, Json& line) const = 0;
  // writes: one for each token; words: which tokens spell them.
  virtual stream::LatencyLog log(std::span<const stream::Write> writes, std::span<const stream::WordSpan> words,
                                 std::optional<double> reference_length) const = 0;
  // Seconds of computing in decode, where they are not all the time until the last event.
  virtual std::optional<double> computing_seconds() const { return {}; }
};

// Of speech from standard input, the first Ctrl-C ends the source, not the command: the rest is still written; and
// samples beyond max_length are left out; standard error reports both.
std::unique_ptr<ArrivingSource> arriving_source(const Model& model, const Facts& facts, const StreamSetup& setup,
                                                const Input& input);

}  // namespace attnkit::cli
