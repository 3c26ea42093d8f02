// Resident memory of this process, now and at most.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace attnkit::core::search {

// Bytes; no value where the system does not say.
std::optional<uint64_t> resident_memory();
std::optional<uint64_t> peak_resident_memory();  // since restart_peak()

// Resident memory that a process shares with no file and no other process, so that files which are mapped do not count.
std::optional<uint64_t> own_memory_of(pid_t process);

// All memory: of the machine, or of the control group that this process sees.
std::optional<uint64_t> machine_memory();

// Gives free memory back to the system, then restarts its account of the most memory resident at once; false where
// that is not allowed.
bool restart_peak();

}  // namespace attnkit::core::search
