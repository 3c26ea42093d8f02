// The number of processors that this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace attnkit::core {

// The processors that this process may use: those of its affinity mask, or fewer where a control group's quota of
// processor time, rounded up, is less.  cgroups: where Linux shows them.
uint32_t usable_processors(const std::string& cgroups = "/sys/fs/cgroup");

}  // namespace attnkit::core
