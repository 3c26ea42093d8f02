#include "core/search/worker/process_memory.hpp"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace attnkit::core::search {
namespace {

// A field of /proc/self/status, such as "VmRSS:", in bytes.
std::optional<uint64_t> status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  uint64_t kib = 0;
  for (std::string word; file >> word;)
    if (word == field && file >> kib) return kib * 1024;
  return std::nullopt;
}

}  // namespace

std::optional<uint64_t> resident_memory() { return status("VmRSS:"); }

std::optional<uint64_t> peak_resident_memory() { return status("VmHWM:"); }

std::optional<uint64_t> own_memory_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/statm");
  uint64_t size = 0, resident = 0, shared = 0;
  if (!(file >> size >> resident >> shared)) return std::nullopt;
  return (resident - std::min(shared, resident)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::optional<uint64_t> machine_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || size <= 0) return std::nullopt;
  const uint64_t all = static_cast<uint64_t>(pages) * static_cast<uint64_t>(size);
  std::ifstream file("/sys/fs/cgroup/memory.max");  // "max" is no limit
  uint64_t limit = 0;
  return file >> limit ? std::min(limit, all) : all;
}

bool restart_peak() {
  // Memory that the allocator keeps for later would be used without the resident memory growing.
  malloc_trim(0);
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return static_cast<bool>(file);
}

}  // namespace attnkit::core::search
