// The objects behind the opaque handles of attnkit.h, and the checks of its tensor arguments.
#pragma once

#include <attnkit/attnkit.h>

#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/model/model.hpp"
#include "core/plugin/mechanism.hpp"
#include "core/plugin/runtime.hpp"
#include "core/session/session.hpp"

struct attnkit_text {
  std::string data;
};

struct attnkit_blob {
  std::vector<std::byte> data;
};

struct attnkit_runtime {
  std::shared_ptr<attnkit::core::Runtime> runtime;
};

struct attnkit_model {
  std::shared_ptr<const attnkit::core::Model> model;
};

struct attnkit_encoded {
  std::unique_ptr<const attnkit::core::Encoded> encoded;
};

struct attnkit_session {
  std::unique_ptr<attnkit::core::Session> session;
};

struct attnkit_block {
  std::shared_ptr<attnkit::core::Runtime> runtime;
  std::shared_ptr<const attnkit::core::Mechanism> mechanism;
  mutable std::mutex mutex;
  // The latest ones, so that repeated runs do not plan again.
  mutable std::vector<std::shared_ptr<const attnkit::core::Plan>> plans;
};

namespace attnkit::core {

// Throws when a required argument is NULL, naming the first.
inline void require(std::initializer_list<std::pair<const void*, const char*>> arguments) {
  for (const auto& [argument, name] : arguments)
    if (!argument) fail(ATTN_INVALID, "{} must not be NULL", name);
}

// Throws when a struct of the caller is older than the first version that has T.
template <class T>
void require_size(const T& argument, const char* name, size_t least = sizeof(T)) {
  if (argument.struct_size < least)
    fail(ATTN_INVALID, "{}.struct_size {} is below {}", name, argument.struct_size, least);
}

// Token ids (rows, length): a contiguous int32 CPU tensor.  An absent tensor gives no rows.
Ids to_ids(const attn_tensor* t, const int32_t* lens, const char* name);

// A source that the model takes, from a contiguous CPU tensor: int32 ids (rows, length), f32 samples (rows, length) or
// frames (rows, length, bins).  An absent tensor gives no rows.  names_row: an error about a row has it as `where`.
SourceBatch to_source(const Model& model, const attn_tensor* t, const int32_t* lens, bool names_row = false);

// The data of a contiguous f32 CPU tensor of exactly this shape.
float* to_floats(const attn_tensor* t, const std::vector<int64_t>& shape, const char* name);

}  // namespace attnkit::core
