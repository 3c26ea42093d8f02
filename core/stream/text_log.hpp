// From what happened, token by token, to a log in words: text in, text out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/stream/latency.hpp"
#include "core/stream/words.hpp"

namespace attnkit::stream {

enum class Unit { word, token };  // what arrives at once

struct TextSource {
  std::vector<WordSpan> words;
  std::vector<int64_t> ends;  // of each unit, in tokens, as attnkit_session_simulate takes them

  // Words of which at least one token is among the first `units` units.
  int64_t words_begun(int64_t units) const;
};

// tokens: all of the source, </s> included, which comes with the last word.  words: of words_of.
TextSource text_source(size_t tokens, std::vector<WordSpan> words, Unit unit);

// A token of the target: how many units had been read, and the seconds that had passed.
struct Write {
  int64_t read;
  double seconds;
};

// A word is written with its last token.  words: of the target.  word_seconds: how long a word of the source lasts,
// which brings the seconds into the source's unit, words.
LatencyLog text_log(const TextSource& source, std::span<const Write> writes, std::span<const WordSpan> words,
                    double word_seconds, std::optional<double> reference_length);

}  // namespace attnkit::stream
