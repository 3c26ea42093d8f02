#include "core/api/handles.hpp"

#include <algorithm>

namespace attnkit::core {
namespace {

// Elements of 4 bytes, one by one, each where it may be read.
bool is_whole(const attn_tensor& t) {
  const bool empty = std::find(t.shape, t.shape + t.ndim, 0) != t.shape + t.ndim;
  return t.dtype_lanes <= 1 && (empty || reinterpret_cast<uintptr_t>(t.data) % 4 == 0);
}

SourceBatch speech_of(const attn_tensor& t, const int32_t* lens) {
  const bool frames = t.ndim == 3;
  int64_t stride = 1;
  bool whole = t.ndim == 2 || frames;
  for (uint32_t d = t.ndim; whole && d-- > 0; stride *= t.shape[d]) {
    // The product of these bounds is below 2^63.
    constexpr int64_t max_shape[] = {int64_t{1} << 20, int64_t{1} << 31, int64_t{1} << 11};
    whole = t.shape[d] >= 0 && t.shape[d] <= max_shape[d];
    whole = whole && (t.stride[d] == stride || t.shape[d] <= 1);
  }
  whole = whole && t.device_type == 1 && (t.data || stride == 0) && is_whole(t);
  if (!whole)
    fail(ATTN_INVALID,
         "source must be an aligned, contiguous float32 tensor on the CPU: samples (rows, length) or frames (rows, "
         "length, "
         "features)");
  const auto* data = static_cast<const float*>(t.data);
  return frames ? SourceBatch::frames(data, t.shape[1], t.shape[2], t.shape[0], lens)
                : SourceBatch::samples(data, t.shape[1], t.shape[0], lens);
}

// Hosts put the end behind every source: a model that was trained without it must not see it.
SourceBatch without_ends(const Ids& all, const Model& model, bool names_row) {
  const Tokenizer* target = model.vocabulary(true);
  const int32_t end = (target ? target : model.vocabulary(false))->end_id();
  const auto lens = std::make_shared<std::vector<int32_t>>();
  for (int64_t row = 0; row < all.batch; ++row) {
    const int64_t length = all.length_of(row);
    const bool ends = length > 0 && length <= all.length && all.data[row * all.stride + length - 1] == end;
    if (ends && length == 1)
      throw Error(ATTN_INVALID,
                  fmt::format("source: row {} has no token but the one that ends it, which this model does not read "
                              "([model.encoder] end = false): give it one or more",
                              row),
                  names_row ? static_cast<int32_t>(row) : -1);
    lens->push_back(static_cast<int32_t>(length - ends));
  }
  SourceBatch made = all;
  // The token that is not read may stand behind max_length others.
  if (all.length > model.manifest().max_length && all.batch > 0) made.length = *std::ranges::max_element(*lens);
  made.lens = lens->data();
  made.own_lens = lens;
  return made;
}

}  // namespace

Ids to_ids(const attn_tensor* t, const int32_t* lens, const char* name) {
  if (!t || !t->data) return {};
  if (t->ndim != 2 || t->dtype_code != 0 || t->dtype_bits != 32 || t->device_type != 1 || t->stride[1] != 1 ||
      !is_whole(*t))
    fail(ATTN_INVALID, "{} must be an aligned, two-dimensional int32 tensor on the CPU with unit inner stride", name);
  if (t->shape[0] < 0 || t->shape[1] < 0 || (t->shape[0] > 1 && t->stride[0] < t->shape[1]))
    fail(ATTN_INVALID, "{}: shape {}x{} with row stride {} is impossible", name, t->shape[0], t->shape[1],
         t->stride[0]);
  if (t->shape[0] > (int64_t{1} << 24) || t->shape[1] > (int64_t{1} << 31))
    fail(ATTN_INVALID, "{}: shape {}x{} is too large", name, t->shape[0], t->shape[1]);
  return {static_cast<const int32_t*>(t->data), t->stride[0], t->shape[0], t->shape[1], lens};
}

SourceBatch to_source(const Model& model, const attn_tensor* t, const int32_t* lens, bool names_row) {
  if (!t) return {};
  const bool floats = t->dtype_code == 2 && t->dtype_bits == 32, ids = t->dtype_code == 0 && t->dtype_bits == 32;
  // A type that neither kind of model takes is refused in the words of this one.
  if (floats || (model.frontend() && !ids)) {
    if (!floats)
      fail(ATTN_INVALID, "source: this model takes speech, f32 samples or frames, not numbers of type {}:{}",
           t->dtype_code, t->dtype_bits);
    return speech_of(*t, lens);
  }
  const Ids all = to_ids(t, lens, "source");
  if (!model.manifest().encoder.ends) return without_ends(all, model, names_row);
  return all;
}

float* to_floats(const attn_tensor* t, const std::vector<int64_t>& shape, const char* name) {
  require({{t, name}});
  const bool is_empty = std::ranges::find(shape, 0) != shape.end();
  bool ok = (t->data || is_empty) && t->ndim == shape.size() && is_whole(*t) && t->dtype_code == 2 &&
            t->dtype_bits == 32 && t->device_type == 1;
  int64_t stride = 1;
  for (size_t d = shape.size(); ok && d-- > 0; stride *= shape[d])
    ok = t->shape[d] == shape[d] && (t->stride[d] == stride || shape[d] <= 1);
  if (!ok)
    fail(ATTN_INVALID, "{} must be an aligned, contiguous float32 CPU tensor of shape {}", name, shape_text(shape));
  return static_cast<float*>(t->data);
}

}  // namespace attnkit::core
