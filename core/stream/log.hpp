// From what happened, token by token, to a log: of texts in words, of speech in milliseconds.
#pragma once

#include <attnkit/attnkit.h>

#include <cmath>
#include <functional>
#include <string>

#include "core/stream/latency.hpp"

namespace attnkit::core::stream {

// The text of some tokens, trimmed or not; more tokens only append to it, but for U+FFFD at its end, half a character,
// and a space there.
using Detokenize = std::function<std::string(std::span<const int32_t>)>;

// The tokens that spell a word, both ends included.  Two words may share one.
struct WordSpan {
  size_t first, last;
  bool operator==(const WordSpan&) const = default;
};

// Of every word, a piece between spaces, in order.  Tokens that spell nothing (specials, a lone word mark) belong to
// none.
std::vector<WordSpan> words_of(std::span<const int32_t> ids, const Detokenize& detokenize);

enum class Unit { word, token };  // what arrives at once

struct TextSource {
  std::vector<WordSpan> words;
  std::vector<int64_t> ends;  // of each unit, in tokens, as attnkit_session_simulate takes them

  // Words of which at least one token is among the first `units` units.
  int64_t words_begun(int64_t units) const;
};

// tokens: all of the source, </s> included, which comes with the last word.  words: of words_of.
TextSource text_source(size_t tokens, std::vector<WordSpan> words, Unit unit);

// A token of the target: how much of the source had been read, units of a text or samples of speech, and the seconds
// that had passed, of computing alone for speech.
struct Write {
  int64_t read;
  double seconds;
};

// A word is written with its last token.  words: of the target.  word_seconds: how long a word of the source lasts,
// which brings the seconds into the source's unit, words.
LatencyLog text_log(const TextSource& source, std::span<const Write> writes, std::span<const WordSpan> words,
                    double word_seconds, std::optional<double> reference_length);

// The way from samples to rows of the encoder.
struct SpeechShape {
  int64_t sample_rate = 0, frame_length = 0, frame_shift = 0, subsampling = 0;

  // That so many samples complete.
  int64_t rows(int64_t samples) const {
    return samples < frame_length ? 0 : (1 + (samples - frame_length) / frame_shift) / subsampling;
  }
  // That complete so many rows, at least 1.
  int64_t samples(int64_t rows) const { return frame_length + (rows * subsampling - 1) * frame_shift; }
  double ms(int64_t samples) const { return static_cast<double>(samples) * 1000 / static_cast<double>(sample_rate); }
  // Rounded up, as SimulEval does.
  int64_t samples_in(double ms) const {
    return static_cast<int64_t>(std::ceil(ms / 1000 * static_cast<double>(sample_rate)));
  }
};
// Of a model that takes speech.
SpeechShape speech_shape(const attnkit_model_info& info);

// Ends of units, as attnkit_session_simulate takes them: every `chunk` samples, or with 0 as rows of the encoder are
// completed; the rest comes with the last.  samples: at least 1.
std::vector<int64_t> speech_ends(const SpeechShape& shape, int64_t samples, int64_t chunk);

// A word is written with its last token.  words: of the target.
LatencyLog speech_log(const SpeechShape& shape, int64_t samples, std::span<const Write> writes,
                      std::span<const WordSpan> words, std::optional<double> reference_length);

}  // namespace attnkit::core::stream
