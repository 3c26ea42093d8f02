// Recordings: files through libsndfile, or raw samples from standard input.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/stream/log.hpp"

namespace attnkit::cli {

// The recordings that a model of speech takes.
struct SpeechFormat {
  stream::SpeechShape shape;
  int64_t max_rows = 0;  // of the encoder
};
SpeechFormat speech_format(const attnkit_model_info& info);

// The samples of a WAV, FLAC or OGG file with one channel at the model's rate; "-": standard input, as samples_of takes
// it.  Throws Failure (data), beginning with origin: unreadable, no such file, damaged, another rate, more channels,
// samples that are not numbers, too short for a row of the encoder or too long for max_length.
std::vector<float> read_audio(const std::string& path, const std::string& origin, const SpeechFormat& format);

// Signed 16-bit little-endian samples; half a sample at the end is left out.
std::vector<float> samples_of(std::span<const char> bytes);

}  // namespace attnkit::cli
