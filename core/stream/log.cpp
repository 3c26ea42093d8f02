#include "core/stream/log.hpp"

#include <algorithm>

namespace attnkit::core::stream {
namespace {

// Of tokens first to last, which appended `grown` to a text that ends inside of a word, or not.  Did a word begin?
bool add(std::vector<WordSpan>& words, size_t first, size_t last, std::string_view grown, bool inside) {
  bool begun = false;
  for (const char c : grown) {
    const bool before = inside;
    inside = c != ' ';
    if (!inside) continue;
    if (!before) words.push_back({first, last});
    words.back().last = last;
    begun = begun || !before;
  }
  return begun;
}

}  // namespace

std::vector<WordSpan> words_of(std::span<const int32_t> ids, const Detokenize& detokenize) {
  std::vector<WordSpan> words;
  size_t from = 0;    // the token that began the last word: what stands before it no longer matters
  size_t next = 0;    // the first token that is not in it
  std::string known;  // the text from there on
  for (size_t i = 0; i < ids.size(); ++i) {
    std::string text = detokenize(ids.subspan(from, i + 1 - from));
    if (text.ends_with("\ufffd") && i + 1 < ids.size()) continue;  // half a character, which the next one completes
    const std::string_view grown = std::string_view(text).substr(std::min(known.size(), text.size()));
    // A lone word mark may be a space at the end.
    if (add(words, next, i, grown, !known.empty() && known.back() != ' ')) {
      from = next;
      text = detokenize(ids.subspan(from, i + 1 - from));
    }
    known = std::move(text);
    next = i + 1;
  }
  return words;
}

int64_t TextSource::words_begun(int64_t units) const {
  if (units <= 0) return 0;
  const auto tokens = static_cast<size_t>(ends[static_cast<size_t>(units - 1)]);
  const auto next =
      std::partition_point(words.begin(), words.end(), [&](const WordSpan& w) { return w.first < tokens; });
  return next - words.begin();
}

TextSource text_source(size_t tokens, std::vector<WordSpan> words, Unit unit) {
  TextSource source{std::move(words), {}};
  if (unit == Unit::token)
    for (size_t i = 1; i <= tokens; ++i) source.ends.push_back(static_cast<int64_t>(i));
  else
    for (const WordSpan& w : source.words)
      if (const auto end = static_cast<int64_t>(w.last + 1); source.ends.empty() || end > source.ends.back())
        source.ends.push_back(end);
  if (source.ends.empty()) source.ends.push_back(0);
  source.ends.back() = static_cast<int64_t>(tokens);
  return source;
}

LatencyLog text_log(const TextSource& source, std::span<const Write> writes, std::span<const WordSpan> words,
                    double word_seconds, std::optional<double> reference_length) {
  LatencyLog log;
  log.source_length = static_cast<double>(source.words.size());
  log.reference_length = reference_length;
  for (const WordSpan& word : words) {
    const Write& write = writes[word.last];
    log.delays.push_back(static_cast<double>(source.words_begun(write.read)));
    log.elapsed.push_back(log.delays.back() + write.seconds / word_seconds);
  }
  return log;
}

SpeechShape speech_shape(const attnkit_model_info& info) {
  return {info.sample_rate, info.frame_length, info.frame_shift, info.subsampling};
}

std::vector<int64_t> speech_ends(const SpeechShape& shape, int64_t samples, int64_t chunk) {
  std::vector<int64_t> ends;
  if (chunk > 0)
    for (int64_t end = chunk; end < samples; end += chunk) ends.push_back(end);
  else
    for (int64_t row = 1; row < shape.rows(samples); ++row) ends.push_back(shape.samples(row));
  ends.push_back(samples);
  return ends;
}

LatencyLog speech_log(const SpeechShape& shape, int64_t samples, std::span<const Write> writes,
                      std::span<const WordSpan> words, std::optional<double> reference_length) {
  LatencyLog log;
  log.source_length = shape.ms(samples);
  log.reference_length = reference_length;
  for (const WordSpan& word : words) {
    const Write& write = writes[word.last];
    log.delays.push_back(shape.ms(write.read));
    log.elapsed.push_back(log.delays.back() + write.seconds * 1000);
  }
  return log;
}

}  // namespace attnkit::core::stream
