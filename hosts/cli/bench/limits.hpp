// The limits of the machine, measured in the same process as what is compared with them.
#pragma once

#include <cstdint>

namespace attnkit::cli {

// Multiply-adds of f32 by `threads` threads, two operations each: operations a second.
double arithmetic_limit(uint32_t threads);
// Reading `bytes` of memory again and again by `threads` threads: bytes a second.
double reading_limit(uint32_t threads, uint64_t bytes);

}  // namespace attnkit::cli
