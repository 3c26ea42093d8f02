// How much memory of this process is resident, now and at most.
#pragma once

#include <cstdint>
#include <optional>

namespace attnkit::search {

// Bytes; no value where the system does not tell.
std::optional<uint64_t> resident_memory();
std::optional<uint64_t> peak_resident_memory();  // since restart_peak()

// Gives free memory back to the system, then restarts its account of the most memory resident at once; false where
// that is not allowed.
bool restart_peak();

}  // namespace attnkit::search
