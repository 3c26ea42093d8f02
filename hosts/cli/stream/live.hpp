// Speech from standard input while it is spoken: reads what is there, waits only where the policy wants more.
#pragma once

#include <chrono>

#include "hosts/cli/stream/source.hpp"

namespace attnkit::cli {

// Samples of a unit of --chunk-ms; 0: a unit is a row of the encoder.
int64_t chunk_of(const stream::SpeechShape& shape, const StreamSetup& setup);

// The first Ctrl-C ends the source, not the command: the rest is still written.  What goes beyond max_length is left
// out.  Both are said on standard error.
class LiveSpeech : public StreamSource {
 public:
  LiveSpeech(const Facts& facts, const StreamSetup& setup);

  bool ready(int64_t) const override { return rows() > 0; }
  // Throws Failure (data): speech too short for a row of the encoder; (numerical): scores that are not numbers.
  Ids decode(Session& session, const Decide& decide, const Observe& observe, uint32_t limit) override;
  void describe(const attnkit_stream_event& event, Json& line) const override;
  stream::LatencyLog log(std::span<const stream::Write> writes, std::span<const stream::WordSpan> words,
                         std::optional<double> reference_length) const override;
  std::optional<double> computing_seconds() const override { return computing_; }

 private:
  using Clock = std::chrono::steady_clock;

  int64_t arrived() const { return static_cast<int64_t>(samples_.size()); }
  int64_t end() const { return ends_.empty() ? 0 : ends_.back(); }
  int64_t rows() const { return format_.shape.rows(end()); }
  int64_t next_end() const;
  size_t most_tokens(uint32_t limit) const;
  void hear(bool wait);
  void take();
  void stop(const std::string& why);
  void read();
  void write(Session& session);
  attnkit_stream_event event(uint32_t action) const;

  SpeechFormat format_;
  int32_t begin_id_, end_id_, outputs_;
  int64_t chunk_;
  std::vector<char> half_;  // bytes of a sample that has not arrived whole
  std::vector<float> samples_;
  std::vector<int64_t> ends_;  // of the units read
  int64_t handed_ = 0;         // samples that the session has
  bool over_ = false;          // no more will arrive
  bool ended_ = false;         // and all was read
  bool complete_ = false;      // and the session knows
  Ids made_;
  std::vector<stream::SpeechWrite> writes_;
  double computing_ = 0;
  std::vector<float> scores_;
  Clock::time_point start_;
};

}  // namespace attnkit::cli
