#include "hosts/cli/stream/live.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/base/greedy.hpp"
#include "hosts/cli/io/interrupt.hpp"

namespace attnkit::cli {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int64_t chunk_of(const stream::SpeechShape& shape, const StreamSetup& setup) {
  return setup.chunk_ms > 0 ? shape.samples_in(static_cast<double>(setup.chunk_ms)) : 0;
}

LiveSpeech::LiveSpeech(const Facts& facts, const StreamSetup& setup)
    : format_(*facts.speech),
      begin_id_(facts.info.begin_id),
      end_id_(facts.info.end_id),
      outputs_(facts.info.outputs),
      chunk_(chunk_of(format_.shape, setup)),
      scores_(static_cast<size_t>(outputs_)) {}

int64_t LiveSpeech::next_end() const { return chunk_ > 0 ? end() + chunk_ : format_.shape.samples(rows() + 1); }

size_t LiveSpeech::most_tokens(uint32_t limit) const {
  const int64_t max_length = format_.max_rows;
  if (limit > 0) return static_cast<size_t>(std::min<int64_t>(limit, max_length));
  return static_cast<size_t>(ended_ ? default_limit(rows(), max_length) : max_length);
}

void LiveSpeech::stop(const std::string& why) {
  note(fmt::format("attnkit: standard input: {}\n", why));
  over_ = true;
}

// Takes all that has arrived; wait: at least something, or the end.
void LiveSpeech::hear(bool wait) {
  if (over_) return;
  if (wait && input_is_there(STDIN_FILENO, true)) take();
  const bool interrupted = take_interrupt();
  while (!over_ && input_is_there(STDIN_FILENO, false)) take();
  if (interrupted && !over_) stop("interrupted, the source ends here");
}

void LiveSpeech::take() {
  char bytes[1 << 14];
  const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (n < 0 && errno != EINTR) fail(Exit::data, "standard input: {}", std::generic_category().message(errno));
  if (n < 0) return;
  if (arrived() == 0) start_ = Clock::now();
  half_.insert(half_.end(), bytes, bytes + n);
  const std::vector<float> more = samples_of(half_);
  samples_.insert(samples_.end(), more.begin(), more.end());
  half_.erase(half_.begin(), half_.begin() + static_cast<std::ptrdiff_t>(2 * more.size()));
  over_ = n == 0;
  if (over_ && !half_.empty()) stop("the last byte is half a sample and ignored");
  if (format_.shape.rows(arrived()) <= format_.max_rows) return;
  samples_.resize(static_cast<size_t>(format_.shape.samples(format_.max_rows)));
  stop(fmt::format("what goes beyond the model's max_length, {} rows or {:.2f} s, is not read", format_.max_rows,
                   format_.shape.ms(arrived()) / 1000));
}

// The next unit; at the end what is left.
void LiveSpeech::read() {
  const int64_t next = next_end();
  while (arrived() < next && !over_) hear(true);
  if (arrived() >= next) hear(false);  // has it ended?
  const int64_t rest = arrived() - next;
  // As in a file, what makes no unit of its own comes with the last one.
  ended_ = over_ && (chunk_ > 0 ? rest <= 0 : format_.shape.rows(arrived()) <= format_.shape.rows(next));
  ends_.push_back(ended_ ? arrived() : next);
  if (ended_ && rows() == 0)
    fail(Exit::data, "standard input: {} samples are less than the {} that the first row of the encoder needs",
         arrived(), format_.shape.samples(1));
}

void LiveSpeech::write(Session& session) {
  const Clock::time_point start = Clock::now();
  if (end() > handed_ || (ended_ && !complete_)) {
    session.read(
        std::span<const float>(samples_).subspan(static_cast<size_t>(handed_), static_cast<size_t>(end() - handed_)),
        ended_);
    handed_ = end();
    complete_ = ended_;
  }
  attnkit_session* const self = session.get();
  const Ids token = {made_.empty() ? begin_id_ : made_.back()};
  Session::write({&self, 1}, Batch({&token, 1}), scores_.data(), outputs_);
  const std::optional<int32_t> best = best_token(scores_);
  if (!best) fail(Exit::numerical, "standard input: {}", nan_message(static_cast<int64_t>(made_.size())));
  made_.push_back(*best);
  computing_ += seconds_since(start);
  writes_.push_back({end(), computing_});
}

attnkit_stream_event LiveSpeech::event(uint32_t action) const {
  return {sizeof(attnkit_stream_event),
          action,
          static_cast<int64_t>(ends_.size()),
          static_cast<int64_t>(made_.size()),
          action == ATTNKIT_WRITE ? made_.back() : -1,
          ended_,
          seconds_since(start_)};
}

Ids LiveSpeech::decode(Session& session, const Decide& decide, const Observe& observe, uint32_t limit) {
  start_ = Clock::now();
  while (made_.size() < most_tokens(limit) && (made_.empty() || made_.back() != end_id_)) {
    const attnkit_stream_view view{sizeof view, ended_, static_cast<int64_t>(ends_.size()),
                                   static_cast<int64_t>(made_.size())};
    const uint32_t action = decide(view) == ATTNKIT_READ && !ended_ ? ATTNKIT_READ : ATTNKIT_WRITE;
    if (action == ATTNKIT_READ) {
      read();
    } else {
      write(session);
      hear(false);
    }
    observe(event(action));
  }
  return made_;
}

void LiveSpeech::describe(const attnkit_stream_event&, Json& line) const {
  line["source_ms"] = format_.shape.ms(end());
}

stream::LatencyLog LiveSpeech::log(std::span<const stream::Write>, std::span<const stream::WordSpan> words,
                                   std::optional<double> reference_length) const {
  return stream::speech_log(format_.shape, arrived(), writes_, words, reference_length);
}

}  // namespace attnkit::cli
