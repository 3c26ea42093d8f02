// The runtime, a model and a session as documents.
#pragma once

#include <string>
#include <vector>

#include "core/session/session.hpp"

namespace attnkit::core {

// JSON "attnkit.runtime/1" of attnkit.h: the machine, and which plugins can do what where.  What plugins can do is
// found by asking them (create and plan) for a block of d_model 128 and 4 heads with default options; what a plugin
// refuses or gets wrong becomes the text of its refusal.  device_type: the one that models of this runtime use.
std::string describe_runtime(const Registry& registry, const Threads& threads, int32_t device_type);

// JSON "attnkit.plugin-list/1" of attnkit.h; asks no plugin anything.
std::string list_plugins(const Registry& registry);

// JSON "attnkit.model-description/1" of attnkit.h: the grid, who decided each cell, and what it costs at which length.
// Throws Error: a length below 1.
std::string describe_model(const Model& model, const std::vector<int64_t>& lengths);

// JSON "attnkit.session/1" of attnkit.h.
std::string describe_session(const Session& session);

}  // namespace attnkit::core
