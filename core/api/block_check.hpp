// The checks that the contract puts on the host before a run reaches a plugin.
#pragma once

#include "core/plugin/mechanism.hpp"

namespace attnkit {

// Throws Error (ATTN_INVALID) naming the argument: bounds of the plan's request, tensors, per-row arrays, state.
void check_run(const Mechanism& mechanism, const Plan& plan, const attn_run& run);

}  // namespace attnkit
