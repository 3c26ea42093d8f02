#include "core/speech/source.hpp"

#include <cmath>

#include "core/base/error.hpp"

namespace attnkit {
namespace {

// Far above any sample within [-1, 1], far below those of integers that were not divided.
constexpr float most = 16;

RawSource speech_of(SourceKind kind, const float* data, int64_t length, int64_t width, int64_t batch,
                    const int32_t* lens) {
  RawSource source;
  source.kind = kind;
  source.speech = data;
  source.stride = length * width;
  source.batch = batch;
  source.length = length;
  source.width = width;
  source.lens = lens;
  return source;
}

}  // namespace

const char* unit_name(SourceKind kind) {
  return kind == SourceKind::samples ? "samples" : kind == SourceKind::frames ? "frames" : "ids";
}

RawSource RawSource::samples(const float* data, int64_t length, int64_t batch, const int32_t* lens) {
  return speech_of(SourceKind::samples, data, length, 1, batch, lens);
}

RawSource RawSource::frames(const float* data, int64_t length, int64_t width, int64_t batch, const int32_t* lens) {
  return speech_of(SourceKind::frames, data, length, width, batch, lens);
}

RawSource RawSource::part(int64_t begin, int64_t end) const {
  RawSource source = *this;
  if (ids) source.ids += begin;
  if (speech) source.speech += begin * width;
  source.length = end - begin;
  source.lens = nullptr;
  return source;
}

void check_speech(const RawSource& source) {
  for (int64_t b = 0; b < source.batch; ++b) {
    const float* row = source.speech + b * source.stride;
    const int64_t n = source.length_of(b) * source.width;
    for (int64_t i = 0; i < n; ++i) {
      const bool sample = source.kind == SourceKind::samples;
      if (!std::isfinite(row[i]))
        fail(ATTN_INVALID, "source: row {} {} {}: {} is not a finite number", b, sample ? "sample" : "frame",
             i / source.width, row[i]);
      if (sample && std::abs(row[i]) > most)
        fail(ATTN_INVALID,
             "source: row {} sample {}: {} is beyond {}, and samples are within [-1, 1]: integers of 16 bits must be "
             "divided by 32768",
             b, i, row[i], most);
    }
  }
}

}  // namespace attnkit
