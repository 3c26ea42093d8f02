#include "core/base/processors.hpp"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

namespace attnkit::core {
namespace {

// glibc's own count, that of std::thread, is of the machine.
double of_affinity() {
  cpu_set_t set;
  const int some = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  return some > 0 ? some : std::max(1u, std::thread::hardware_concurrency());
}

// The processors whose time a control group may take, infinity without a limit.
double quota(const std::string& group) {
  double most = 0, period = 0;
  // Version 2 has "most period" in one file, version 1 has two; "max" and -1 are no limit.
  if (std::ifstream file(group + "/cpu.max"); !(file >> most >> period)) {
    std::ifstream(group + "/cpu.cfs_quota_us") >> most;
    std::ifstream(group + "/cpu.cfs_period_us") >> period;
  }
  return most > 0 && period > 0 ? most / period : std::numeric_limits<double>::infinity();
}

}  // namespace

uint32_t usable_processors(const std::string& cgroups) {
  double least = of_affinity();
  // A line is number:controllers:path, without controllers in version 2.  The groups above limit as well, and within a
  // container a path may be one of the machine's, where the container's own group is the root.  No paths of
  // std::filesystem: libstdc++ 12 frees what it never had when memory runs out while one is copied.
  std::ifstream lines("/proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && (controllers + ",").find("cpu,") == std::string::npos) continue;
    const std::string root = controllers.empty() ? cgroups : cgroups + "/cpu";
    for (std::string group = line.substr(second + 1);; group.resize(std::min(group.size(), group.rfind('/')))) {
      least = std::min(least, quota(root + group));
      if (group.find('/') == std::string::npos) break;
    }
  }
  return static_cast<uint32_t>(std::max(1.0, std::ceil(least)));
}

}  // namespace attnkit::core
