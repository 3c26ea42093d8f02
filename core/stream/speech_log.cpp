#include "core/stream/speech_log.hpp"

#include <cmath>

namespace attnkit::stream {

int64_t SpeechShape::rows(int64_t samples) const {
  return samples < frame_length ? 0 : (1 + (samples - frame_length) / frame_shift) / subsampling;
}

int64_t SpeechShape::samples(int64_t rows) const { return frame_length + (rows * subsampling - 1) * frame_shift; }

double SpeechShape::ms(int64_t samples) const {
  return static_cast<double>(samples) * 1000 / static_cast<double>(sample_rate);
}

int64_t SpeechShape::samples_in(double ms) const {
  return static_cast<int64_t>(std::ceil(ms / 1000 * static_cast<double>(sample_rate)));
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

LatencyLog speech_log(const SpeechShape& shape, int64_t samples, std::span<const SpeechWrite> writes,
                      std::span<const WordSpan> words, std::optional<double> reference_length) {
  LatencyLog log;
  log.source_length = shape.ms(samples);
  log.reference_length = reference_length;
  for (const WordSpan& word : words) {
    const SpeechWrite& write = writes[word.last];
    log.delays.push_back(shape.ms(write.samples));
    log.elapsed.push_back(log.delays.back() + write.seconds * 1000);
  }
  return log;
}

}  // namespace attnkit::stream
