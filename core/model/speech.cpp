// What a model does with a source before its encoder runs: checks of what it takes, and rows of speech.
#include <algorithm>

#include "core/model/model.hpp"

namespace attnkit {

void Model::check_source(const RawSource& source) const {
  if (!frontend_) {
    if (source.is_speech())
      fail(ATTN_INVALID, "source: this model takes text: int32 ids (rows, length), not f32 {}", unit_name(source.kind));
    return check_ids(source.as_ids(), false);
  }
  const FbankSpec& features = frontend_->table().features;
  if (source.kind == SourceKind::ids)
    fail(ATTN_INVALID,
         "source: this model takes speech: f32 samples (rows, length) at {} Hz or frames (rows, length, {}), not ids",
         features.sample_rate, features.bins);
  if (source.kind == SourceKind::frames && source.width != features.bins)
    fail(ATTN_INVALID, "source: frames of {} numbers, this model's have {}", source.width, features.bins);
  if (source.batch < 0 || source.length < 0 || (source.batch > 0 && source.length > 0 && !source.speech))
    fail(ATTN_INVALID, "source: no {}", unit_name(source.kind));
  if (const int64_t rows = source_rows(source); rows > manifest_.max_length)
    fail(ATTN_INVALID, "source: {} {} make {} rows of the encoder, more than max_length {}", source.length,
         unit_name(source.kind), rows, manifest_.max_length);
  for (int64_t b = 0; b < source.batch; ++b)
    if (const int64_t n = source.length_of(b); n < 0 || n > source.length)
      fail(ATTN_INVALID, "source: row {} has length {}, possible are 0 to {}", b, n, source.length);
  check_speech(source);
}

int64_t Model::source_rows(const RawSource& source) const {
  return frontend_ ? frontend_->rows(source.kind, source.length) : source.length;
}

void Model::embed_speech(const RawSource& source, std::vector<int32_t>& lengths, float* x) const {
  const int64_t length = source_rows(source), d = manifest_.d_model;
  lengths.clear();
  std::fill(x, x + source.batch * length * d, 0.0f);
  for (int64_t b = 0; b < source.batch; ++b, x += length * d) {
    Frontend::Waiting waiting = frontend_->start();
    const std::vector<float> rows = frontend_->take(runtime_->threads, waiting, source.kind,
                                                    source.speech + b * source.stride, source.length_of(b));
    lengths.push_back(static_cast<int32_t>(static_cast<int64_t>(rows.size()) / d));
    embed_piece({nullptr, rows.data(), lengths.back()}, 0, x);
  }
}

}  // namespace attnkit
