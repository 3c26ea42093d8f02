// Counts the calls of malloc and its kin in the program that this is linked into, by taking their place.
#pragma once
#include "core/conformance/process_state.hpp"

namespace attnkit::core::conformance {

// NULL in a program with a sanitizer, which has taken their place already.
CountAllocations counted_malloc();

}  // namespace attnkit::core::conformance
