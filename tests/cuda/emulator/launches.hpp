// The shared memory of launches, for tests of what documents say of it.
#pragma once
#include <cstddef>
#include <set>

namespace emulator {

// Bytes that launches asked for since the last call, without 0.
std::set<size_t> take_shared_bytes();

}  // namespace emulator
