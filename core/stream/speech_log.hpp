// From what happened, token by token, to a log in milliseconds: speech in, text out.
#pragma once

#include <attnkit/attnkit.h>

#include <optional>
#include <span>
#include <vector>

#include "core/stream/latency.hpp"
#include "core/stream/words.hpp"

namespace attnkit::stream {

// How samples become rows of the encoder.
struct SpeechShape {
  int64_t sample_rate = 0, frame_length = 0, frame_shift = 0, subsampling = 0;

  int64_t rows(int64_t samples) const;  // that so many samples complete
  int64_t samples(int64_t rows) const;  // that complete so many rows, at least 1
  double ms(int64_t samples) const;     // of that many
  int64_t samples_in(double ms) const;  // rounded up, as SimulEval does
};
// Of a model that takes speech.
SpeechShape speech_shape(const attnkit_model_info& info);

// Where units end, as attnkit_session_simulate takes them: every `chunk` samples, or with 0 as rows of the encoder are
// completed; the rest comes with the last.  samples: at least 1.
std::vector<int64_t> speech_ends(const SpeechShape& shape, int64_t samples, int64_t chunk);

// A token of the target: how many samples had been read, and the seconds that computing had taken.
struct SpeechWrite {
  int64_t samples;
  double seconds;
};

// A word is written with its last token.  words: of the target.
LatencyLog speech_log(const SpeechShape& shape, int64_t samples, std::span<const SpeechWrite> writes,
                      std::span<const WordSpan> words, std::optional<double> reference_length);

}  // namespace attnkit::stream
