// What arrives while it is translated: a text, or speech from a file or as it is spoken.
#pragma once

#include <functional>
#include <memory>

#include "core/stream/log.hpp"
#include "hosts/cli/io/inputs.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/stream/setup.hpp"

namespace attnkit::cli {

class StreamSource {
 public:
  using Decide = std::function<uint32_t(const attnkit_stream_view&)>;
  using Observe = std::function<void(const attnkit_stream_event&)>;

  virtual ~StreamSource() = default;
  virtual bool empty() const { return false; }  // nothing to translate
  // After so many units, does the model have anything to write from?
  virtual bool ready(int64_t units) const = 0;
  // Reads and writes by turns as decide says, in an empty session; as attnkit_session_simulate.
  virtual Ids decode(Session& session, const Decide& decide, const Observe& observe, uint32_t limit) = 0;
  // Adds what an event says of the source: the unit read, and the time of the source.
  virtual void describe(const attnkit_stream_event& event, Json& line) const = 0;
  // writes: one for each token; words: which tokens spell them.
  virtual stream::LatencyLog log(std::span<const stream::Write> writes, std::span<const stream::WordSpan> words,
                                 std::optional<double> reference_length) const = 0;
  // That computing took in decode, where that is not all the time until the last event.
  virtual std::optional<double> computing_seconds() const { return {}; }
};

// Of an input: a text, a file, or standard input as it arrives.
std::unique_ptr<StreamSource> stream_source(const Model& model, const Facts& facts, const StreamSetup& setup,
                                            const Input& input);

}  // namespace attnkit::cli
