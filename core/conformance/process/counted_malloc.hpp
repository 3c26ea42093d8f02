// Counts the calls of malloc and its kin, and of mmap, in the program that this is linked into, by taking their place,
// and lets one of malloc fail that was asked for.
#pragma once
#include "core/conformance/process_state.hpp"

namespace attnkit::core::conformance {

// Both NULL in a program with a sanitizer, which has taken their place already.
CountAllocations counted_malloc();
FailAllocation failing_malloc();

}  // namespace attnkit::core::conformance
