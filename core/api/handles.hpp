// What stands behind the opaque handles of attnkit.h, and the checks of its tensor arguments.
#pragma once

#include <attnkit/attnkit.h>

#include <memory>
#include <mutex>
#include <string>

#include "core/plugin/mechanism.hpp"
#include "core/model/model.hpp"
#include "core/plugin/runtime.hpp"
#include "core/session/session.hpp"

struct attnkit_text {
  std::string data;
};

struct attnkit_blob {
  std::vector<std::byte> data;
};

struct attnkit_runtime {
  std::shared_ptr<attnkit::Runtime> runtime;
};

struct attnkit_model {
  std::shared_ptr<const attnkit::Model> model;
};

struct attnkit_encoded {
  std::unique_ptr<const attnkit::Encoded> encoded;
};

struct attnkit_session {
  std::unique_ptr<attnkit::Session> session;
};

struct attnkit_block {
  std::shared_ptr<attnkit::Runtime> runtime;
  std::shared_ptr<const attnkit::Mechanism> mechanism;
  mutable std::mutex mutex;
  mutable std::vector<attnkit::Plan> plans;  // the latest ones, so that repeated runs do not plan again
};

namespace attnkit {

// Throws when a required argument is NULL.
inline void require(const void* argument, const char* name) {
  if (!argument) fail(ATTN_INVALID, "{} must not be NULL", name);
}

// Token ids (rows, length): a contiguous int32 CPU tensor.  An absent tensor gives no rows.
inline Ids to_ids(const attn_tensor* t, const int32_t* lens, const char* name) {
  if (!t || !t->data) return {};
  if (t->ndim != 2 || t->dtype_code != 0 || t->dtype_bits != 32 || t->device_type != 1 || t->stride[1] != 1)
    fail(ATTN_INVALID, "{} must be a two-dimensional int32 tensor on the CPU with unit inner stride", name);
  if (t->shape[0] < 0 || t->shape[1] < 0 || (t->shape[0] > 1 && t->stride[0] < t->shape[1]))
    fail(ATTN_INVALID, "{}: shape {}x{} with row stride {} is impossible", name, t->shape[0], t->shape[1],
         t->stride[0]);
  if (t->shape[0] > (int64_t{1} << 24) || t->shape[1] > (int64_t{1} << 31))
    fail(ATTN_INVALID, "{}: shape {}x{} is too large", name, t->shape[0], t->shape[1]);
  return {static_cast<const int32_t*>(t->data), t->stride[0], t->shape[0], t->shape[1], lens};
}

// A source that the model takes, from a contiguous CPU tensor: int32 ids (rows, length), f32 samples (rows, length) or
// frames (rows, length, bins).  An absent tensor gives no rows.
SourceBatch to_source(const Model& model, const attn_tensor* t, const int32_t* lens);

// The data of a contiguous f32 CPU tensor of exactly this shape.
inline float* to_floats(const attn_tensor* t, const std::vector<int64_t>& shape, const char* name) {
  require(t, name);
  bool ok = t->data && t->ndim == shape.size() && t->dtype_code == 2 && t->dtype_bits == 32 && t->device_type == 1;
  int64_t stride = 1;
  for (size_t d = shape.size(); ok && d-- > 0; stride *= shape[d])
    ok = t->shape[d] == shape[d] && (t->stride[d] == stride || shape[d] <= 1);
  if (!ok) fail(ATTN_INVALID, "{} must be a contiguous float32 CPU tensor of shape {}", name, shape_text(shape));
  return static_cast<float*>(t->data);
}

}  // namespace attnkit
