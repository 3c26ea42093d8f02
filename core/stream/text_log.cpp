#include "core/stream/text_log.hpp"

#include <algorithm>

namespace attnkit::stream {

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

}  // namespace attnkit::stream
