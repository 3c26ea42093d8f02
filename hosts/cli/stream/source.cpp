#include "hosts/cli/stream/source.hpp"

#include "hosts/cli/stream/live.hpp"

namespace attnkit::cli {
namespace {

class Text : public StreamSource {
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

  void describe(const attnkit_stream_event& event, Json& line) const override {
    if (event.action == ATTNKIT_READ) line["text"] = unit_text(static_cast<size_t>(event.read - 1));
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
  std::string unit_text(size_t unit) const {
    const auto from = static_cast<size_t>(unit > 0 ? source_.ends[unit - 1] : 0),
               to = static_cast<size_t>(source_.ends[unit]);
    return model_.detokenize(Side::source, std::span(ids_).subspan(from, to - from));
  }

  const Model& model_;
  const Ids& ids_;
  double word_seconds_;
  stream::TextSource source_;
};

class SpeechFile : public StreamSource {
 public:
  SpeechFile(const Facts& facts, const StreamSetup& setup, const Input& input)
      : shape_(facts.speech->shape),
        samples_(recorded(facts, input)),
        ends_(stream::speech_ends(shape_, count(), chunk_of(shape_, setup))) {}

  bool ready(int64_t units) const override { return units > 0 && shape_.rows(end(units)) > 0; }

  Ids decode(Session& session, const Decide& decide, const Observe& observe, uint32_t limit) override {
    return session.simulate(samples_, ends_, decide, observe, limit);
  }

  void describe(const attnkit_stream_event& event, Json& line) const override {
    line["source_ms"] = event.read > 0 ? shape_.ms(end(event.read)) : 0;
  }

  stream::LatencyLog log(std::span<const stream::Write> writes, std::span<const stream::WordSpan> words,
                         std::optional<double> reference_length) const override {
    std::vector<stream::SpeechWrite> heard;
    for (const stream::Write& write : writes) heard.push_back({end(write.read), write.seconds});
    return stream::speech_log(shape_, count(), heard, words, reference_length);
  }

 private:
  int64_t count() const { return static_cast<int64_t>(samples_.size()); }
  int64_t end(int64_t units) const { return ends_[static_cast<size_t>(units - 1)]; }

  const stream::SpeechShape& shape_;
  std::vector<float> samples_;
  std::vector<int64_t> ends_;
};

}  // namespace

std::unique_ptr<StreamSource> stream_source(const Model& model, const Facts& facts, const StreamSetup& setup,
                                            const Input& input) {
  if (!facts.speech) return std::make_unique<Text>(model, setup, input);
  if (input.audio->path == "-") return std::make_unique<LiveSpeech>(facts, setup);
  return std::make_unique<SpeechFile>(facts, setup, input);
}

}  // namespace attnkit::cli
