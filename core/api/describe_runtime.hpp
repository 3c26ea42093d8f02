// The runtime as a document: what machine, which plugins, what each of them can do where, and what was not loaded.
#pragma once

#include <cstdint>
#include <string>

#include "core/plugin/registry.hpp"
#include "core/base/threads.hpp"

namespace attnkit {

// JSON "attnkit.runtime/1" of attnkit.h.  What plugins can do is found by asking them (create and plan) for a block of
// d_model 128 and 4 heads with default options; what a plugin refuses or gets wrong becomes the text of its refusal.
// device_type: the one that models of this runtime use.
std::string describe_runtime(const Registry& registry, const Threads& threads, int32_t device_type);

// JSON "attnkit.plugin-list/1" of attnkit.h; asks no plugin anything.
std::string list_plugins(const Registry& registry);

}  // namespace attnkit
