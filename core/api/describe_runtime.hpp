// The runtime as a document: the machine, the plugins with their abilities by place, and the files that were not
// loaded.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/threads.hpp"
#include "core/plugin/registry.hpp"

namespace attnkit {

// Returns JSON "attnkit.runtime/1" of attnkit.h.  Plugins are asked (create and plan) for a block of d_model 128 and 4
// heads with default options; a refusal or a failure becomes the text of its refusal.
// device_type: the one that models of this runtime use.
std::string describe_runtime(const Registry& registry, const Threads& threads, int32_t device_type);

// Returns JSON "attnkit.plugin-list/1" of attnkit.h; asks no plugin anything.
std::string list_plugins(const Registry& registry);

}  // namespace attnkit
