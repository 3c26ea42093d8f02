#include "hosts/cli/decode/arriving.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/base/clock.hpp"
#include "core/base/decoding/greedy.hpp"
#include "hosts/cli/io/interrupt.hpp"

namespace attnkit::cli {
namespace {

class Text : public ArrivingSource {
 public:
  Text(const Model& model, const StreamSetup& setup, const Input& input)
      : model_(model),
        ids_(input.ids),
        word_seconds_(setup.word_seconds),
        source_(stream::text_source(ids_.size(), stream::words_of(ids_, detokenizer()), setup.unit)) {}

  bool empty() const override { return source_.words.empty(); }
  bool ready(int64_t) const override { return true; }

  Ids decode(Session& session, const Decide& decide, const Observe& observe, uint32_t limit) override {
    return session.simulate(ids_, source_.ends, decide, observe, limit);
  }

  void add_text(const attnkit_stream_event& event, Json& line) const override {
    const auto unit = static_cast<size_t>(event.read - 1);
    const auto from = static_cast<size_t>(unit > 0 ? source_.ends[unit - 1] : 0),
               to = static_cast<size_t>(source_.ends[unit]);
    line["text"] = model_.detokenize(Side::source, std::span(ids_).subspan(from, to - from));
  }

  void add_time(const attnkit_stream_event& event, Json& line) const override {
    line["source_words"] = source_.words_begun(event.read);
  }

  stream::LatencyLog log(std::span<const stream::Write> writes, std::span<const stream::WordSpan> words,
                         std::optional<double> reference_length) const override {
    return stream::text_log(source_, writes, words, word_seconds_, reference_length);
  }

 private:
  stream::Detokenize detokenizer() const {
    return [this](std::span<const int32_t> ids) { return model_.detokenize(Side::source, ids); };
  }

  const Model& model_;
  const Ids& ids_;
  double word_seconds_;
  stream::TextSource source_;
};

// Samples of a unit of --chunk-ms; 0: a unit is a row of the encoder.
int64_t chunk_of(const stream::SpeechShape& shape, const StreamSetup& setup) {
  return setup.chunk_ms > 0 ? shape.samples_in(static_cast<double>(setup.chunk_ms)) : 0;
}

class SpeechFile : public ArrivingSource {
 public:
  SpeechFile(const Facts& facts, const StreamSetup& setup, const Input& input)
      : shape_(facts.speech->shape),
        samples_(recorded(facts, input)),
        ends_(stream::speech_ends(shape_, count(), chunk_of(shape_, setup))) {}

  bool ready(int64_t units) const override { return units > 0 && shape_.rows(end(units)) > 0; }

  Ids decode(Session& session, const Decide& decide, const Observe& observe, uint32_t limit) override {
    return session.simulate(samples_, ends_, decide, observe, limit);
  }

  void add_time(const attnkit_stream_event& event, Json& line) const override {
    line["source_ms"] = event.read > 0 ? shape_.ms(end(event.read)) : 0;
  }

  stream::LatencyLog log(std::span<const stream::Write> writes, std::span<const stream::WordSpan> words,
                         std::optional<double> reference_length) const override {
    std::vector<stream::Write> spoken;
    for (const stream::Write& write : writes) spoken.push_back({end(write.read), write.seconds});
    return stream::speech_log(shape_, count(), spoken, words, reference_length);
  }

 private:
  int64_t count() const { return static_cast<int64_t>(samples_.size()); }
  int64_t end(int64_t units) const { return ends_[static_cast<size_t>(units - 1)]; }

  const stream::SpeechShape& shape_;
  std::vector<float> samples_;
  std::vector<int64_t> ends_;
};

// Speech from standard input: reads what has arrived, waits only where the policy wants more.
class LiveSpeech : public ArrivingSource {
 public:
  LiveSpeech(const Facts& facts, const StreamSetup& setup)
      : format_(*facts.speech),
        begin_id_(facts.info.begin_id),
        end_id_(facts.info.end_id),
        outputs_(facts.info.outputs),
        longest_target_(facts.longest_target()),
        whole_rows_((facts.frames + facts.info.subsampling - 1) / facts.info.subsampling),
        chunk_(chunk_of(format_.shape, setup)),
        greedy_(facts.sampling.greedy()),
        scores_(static_cast<size_t>(outputs_)) {
    greedy_.saw({&begin_id_, 1});
  }

  bool ready(int64_t) const override { return rows() > 0; }

  Ids decode(Session& session, const Decide& decide, const Observe& observe, uint32_t limit) override {
    start_ = Clock::now();
    while (made_.empty() || made_.back() != end_id_) {
      const attnkit_stream_view view{sizeof view, ended_, units(), tokens()};
      const bool full = tokens() >= max_tokens(limit);
      // A source that goes on may have room for more.
      if (full && (limit > 0 || ended_ || tokens() >= longest_target_)) break;
      const bool reads = !ended_ && (full || decide(view) == ATTNKIT_READ);
      if (reads) {
        read();
      } else {
        write(session);
        receive(false);
      }
      observe({sizeof(attnkit_stream_event), reads ? uint32_t{ATTNKIT_READ} : uint32_t{ATTNKIT_WRITE}, units(),
               tokens(), reads ? -1 : made_.back(), ended_, seconds_since(start_)});
    }
    return made_;
  }

  void add_time(const attnkit_stream_event&, Json& line) const override { line["source_ms"] = format_.shape.ms(end()); }

  stream::LatencyLog log(std::span<const stream::Write>, std::span<const stream::WordSpan> words,
                         std::optional<double> reference_length) const override {
    return stream::speech_log(format_.shape, arrived(), writes_, words, reference_length);
  }
  std::optional<double> computing_seconds() const override { return computing_; }

 private:
  int64_t units() const { return static_cast<int64_t>(ends_.size()); }
  int64_t tokens() const { return static_cast<int64_t>(made_.size()); }
  int64_t arrived() const { return static_cast<int64_t>(samples_.size()); }
  int64_t end() const { return ends_.empty() ? 0 : ends_.back(); }
  int64_t rows() const { return format_.shape.rows(end()); }

  // Of what was read so far.
  int64_t max_tokens(uint32_t limit) const {
    if (limit > 0) return std::min<int64_t>(limit, longest_target_);
    return default_limit(whole_rows_ > 0 ? whole_rows_ : rows(), longest_target_);
  }

  void stop(const std::string& why) {
    note(fmt::format("attnkit: standard input: {}\n", why));
    over_ = true;
  }

  void take() {
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
    if (arrived() <= format_.longest()) return;
    // A unit may have ended behind the last row that the model takes.
    const int64_t kept = format_.window > 0 ? format_.window : std::max(format_.shape.samples(format_.max_rows), end());
    samples_.resize(static_cast<size_t>(kept));
    stop(fmt::format("what goes beyond the model's max_length, {} rows or {:.2f} s, is not read", format_.max_rows,
                     format_.shape.ms(arrived()) / 1000));
  }

  // Takes all that has arrived; wait: at least something, or the end.
  void receive(bool wait) {
    if (over_) return;
    if (wait && input_is_there(STDIN_FILENO, true)) take();
    const bool interrupted = take_interrupt();
    while (!over_ && input_is_there(STDIN_FILENO, false)) take();
    if (interrupted && !over_) stop("interrupted, the source ends here");
  }

  // The next unit; at the end what is left.
  void read() {
    const int64_t next = chunk_ > 0 ? end() + chunk_ : format_.shape.samples(rows() + 1);
    while (arrived() < next && !over_) receive(true);
    if (arrived() >= next) receive(false);  // has it ended?
    const int64_t rest = arrived() - next;
    // As in a file, what makes no unit of its own comes with the last one.
    ended_ = over_ && (chunk_ > 0 ? rest <= 0 : format_.shape.rows(arrived()) <= format_.shape.rows(next));
    ends_.push_back(ended_ ? arrived() : next);
    const int64_t least = whole_rows_ > 0 ? 1 : format_.shape.samples(1);
    if (ended_ && arrived() < least)
      fail(Exit::data, "standard input: {} samples are less than the {} that the first row of the encoder needs",
           arrived(), least);
  }

  void write(Session& session) {
    const Clock::time_point start = Clock::now();
    if (end() > given_ || (ended_ && !complete_)) {
      session.read(
          std::span<const float>(samples_).subspan(static_cast<size_t>(given_), static_cast<size_t>(end() - given_)),
          ended_);
      given_ = end();
      complete_ = ended_;
    }
    attnkit_session* const self = session.get();
    const Ids token = {made_.empty() ? begin_id_ : made_.back()};
    Session::write({&self, 1}, Batch({&token, 1}), scores_.data(), outputs_);
    const std::optional<int32_t> best = greedy_.draw(scores_);
    if (!best) fail(Exit::numerical, "standard input: {}", nan_message(tokens()));
    if (!may_come(scores_[static_cast<size_t>(*best)]))
      fail(Exit::data, "standard input: {}", nothing_left_message(tokens()));
    made_.push_back(*best);
    computing_ += seconds_since(start);
    writes_.push_back({end(), computing_});
  }

  SpeechFormat format_;
  int32_t begin_id_, end_id_, outputs_;
  int64_t longest_target_;
  int64_t whole_rows_;  // of every recording, where the model takes them whole; else 0
  int64_t chunk_;
  std::vector<char> half_;  // bytes of a sample that has not arrived whole
  std::vector<float> samples_;
  std::vector<int64_t> ends_;  // of the units read
  int64_t given_ = 0;          // samples that the session has
  bool over_ = false;          // no more will arrive
  bool ended_ = false;         // and all was read
  bool complete_ = false;      // and the session was given its end
  Ids made_;
  std::vector<stream::Write> writes_;
  double computing_ = 0;
  Sampler greedy_;
  std::vector<float> scores_;
  Clock::time_point start_;
};

}  // namespace

std::unique_ptr<ArrivingSource> arriving_source(const Model& model, const Facts& facts, const StreamSetup& setup,
                                                const Input& input) {
  if (!facts.speech) return std::make_unique<Text>(model, setup, input);
  if (input.audio->path == "-") return std::make_unique<LiveSpeech>(facts, setup);
  return std::make_unique<SpeechFile>(facts, setup, input);
}

}  // namespace attnkit::cli
