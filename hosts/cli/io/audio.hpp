// Recordings: files through libsndfile, or raw samples from standard input.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/search/trial/data_set.hpp"
#include "core/stream/log.hpp"

namespace attnkit::cli {

using namespace core;

// The recordings that a model of speech takes.
struct SpeechFormat {
  stream::SpeechShape shape;
  int64_t max_rows = 0;     // of the encoder
  int64_t window = 0;       // samples of a recording, of a model that takes it whole; 0: it takes speech in pieces
  bool any_length = false;  // recordings longer than that are cut by whoever reads them
  int64_t longest() const { return window > 0 ? window : shape.samples(max_rows + 1) - 1; }
};
SpeechFormat speech_format(const search::TaskFacts& facts);

// The samples of a WAV, FLAC or OGG file with one channel at the model's rate; "-": standard input, as samples_of takes
// it.  Throws Failure (data), beginning with origin: unreadable, no such file, damaged, another rate, more channels,
// samples that are not numbers, too short for a row of the encoder or too long for the model.
std::vector<float> read_audio(const std::string& path, const std::string& origin, const SpeechFormat& format);

// The ends of a recording's windows: each is as long as `window`, but ends in the middle of the quietest tenth of a
// second of its last sixth, so that words are not cut; the last one holds what is left.
std::vector<int64_t> window_ends(std::span<const float> samples, int64_t window, int64_t sample_rate);

// Signed 16-bit little-endian samples; half a sample at the end is left out.
std::vector<float> samples_of(std::span<const char> bytes);

}  // namespace attnkit::cli
