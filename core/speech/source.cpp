#include "core/speech/source.hpp"

#include <cmath>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

// Far above any sample within [-1, 1], far below those of integers that were not divided.
constexpr float max_sample = 16;

}  // namespace

const char* unit_name(SourceKind kind) {
  return kind == SourceKind::samples ? "samples" : kind == SourceKind::frames ? "frames" : "ids";
}

SourceBatch SourceBatch::samples(const float* data, int64_t length, int64_t batch, const int32_t* lens) {
  SourceBatch source = frames(data, length, 1, batch, lens);
  source.kind = SourceKind::samples;
  return source;
}

SourceBatch SourceBatch::frames(const float* data, int64_t length, int64_t width, int64_t batch, const int32_t* lens) {
  SourceBatch source;
  source.kind = SourceKind::frames;
  source.speech = data;
  source.stride = length * width;
  source.batch = batch;
  source.length = length;
  source.width = width;
  source.lens = lens;
  return source;
}

SourceBatch SourceBatch::row(int64_t row) const {
  SourceBatch source = *this;
  if (ids) source.ids += row * stride;
  if (speech) source.speech += row * stride;
  source.batch = 1;
  source.length = length_of(row);
  source.lens = nullptr;
  return source;
}

SourceBatch SourceBatch::part(int64_t begin, int64_t end) const {
  SourceBatch source = *this;
  if (ids) source.ids += begin;
  if (speech) source.speech += begin * width;
  source.length = end - begin;
  source.lens = nullptr;
  return source;
}

void check_speech(const SourceBatch& source) {
  for (int64_t b = 0; b < source.batch; ++b) {
    const float* row = source.speech + b * source.stride;
    const int64_t n = source.length_of(b) * source.width;
    for (int64_t i = 0; i < n; ++i) {
      const bool sample = source.kind == SourceKind::samples;
      if (!std::isfinite(row[i]))
        fail(ATTN_INVALID, "source: row {} {} {}: {} is not a finite number", b, sample ? "sample" : "frame",
             i / source.width, row[i]);
      if (sample && std::abs(row[i]) > max_sample)
        fail(ATTN_INVALID,
             "source: row {} sample {}: {} is beyond {}, and samples are within [-1, 1]: integers of 16 bits must be "
             "divided by 32768",
             b, i, row[i], max_sample);
    }
  }
}

}  // namespace attnkit::core
