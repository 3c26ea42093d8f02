#include "core/search/process_memory.hpp"

#include <malloc.h>

#include <fstream>
#include <string>

namespace attnkit::search {
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

bool restart_peak() {
  // What the allocator keeps for later would be used without the resident memory growing.
  malloc_trim(0);
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return static_cast<bool>(file);
}

}  // namespace attnkit::search
