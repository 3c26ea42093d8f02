// attnkit.h: speech as a source.
#include "core/api/handles.hpp"

using namespace attnkit;

namespace attnkit {
namespace {

SourceBatch speech_of(const attn_tensor& t, const int32_t* lens) {
  const bool frames = t.ndim == 3;
  int64_t stride = 1;
  bool whole = t.ndim == 2 || frames;
  for (uint32_t d = t.ndim; whole && d-- > 0; stride *= t.shape[d]) {
    // The product of these bounds is below 2^63.
    constexpr int64_t most[] = {int64_t{1} << 20, int64_t{1} << 31, int64_t{1} << 11};
    whole = t.shape[d] >= 0 && t.shape[d] <= most[d];
    whole = whole && (t.stride[d] == stride || t.shape[d] <= 1);
  }
  whole = whole && t.device_type == 1 && (t.data || stride == 0);
  if (!whole)
    fail(ATTN_INVALID,
         "source must be a contiguous float32 tensor on the CPU: samples (rows, length) or frames (rows, length, "
         "features)");
  const auto* data = static_cast<const float*>(t.data);
  return frames ? SourceBatch::frames(data, t.shape[1], t.shape[2], t.shape[0], lens)
                : SourceBatch::samples(data, t.shape[1], t.shape[0], lens);
}

}  // namespace

SourceBatch to_source(const Model& model, const attn_tensor* t, const int32_t* lens) {
  if (!t) return {};
  const bool floats = t->dtype_code == 2 && t->dtype_bits == 32, ids = t->dtype_code == 0 && t->dtype_bits == 32;
  // A type that neither kind of model takes is refused in the words of this one.
  if (floats || (model.frontend() && !ids)) {
    if (!floats)
      fail(ATTN_INVALID, "source: this model takes speech, f32 samples or frames, not numbers of type {}:{}",
           t->dtype_code, t->dtype_bits);
    return speech_of(*t, lens);
  }
  return to_ids(t, lens, "source");
}

}  // namespace attnkit

int32_t attnkit_model_features(const attnkit_model* model, const attn_tensor* samples, const attn_tensor* frames,
                               uint64_t* n, attn_error* err) {
  return guard(err, [&] {
    require(model, "model");
    require(samples, "samples");
    require(n, "n");
    const Frontend* frontend = model->model->frontend();
    if (!frontend) fail(ATTN_INVALID, "this model takes text, not speech: it has no features");
    const SourceBatch source = to_source(*model->model, samples, nullptr);
    if (source.kind != SourceKind::samples || source.batch != 1)
      fail(ATTN_INVALID, "samples must be one row (1, length) of float32");
    check_speech(source);
    const int64_t count = frontend->frames(source.kind, source.length);
    if (frames)
      frontend->features(source.speech, count,
                         to_floats(frames, {1, count, frontend->table().features.bins}, "frames"));
    *n = static_cast<uint64_t>(count);
  });
}
