// Looks up this code's own address in the kernel's list of mapped files.
#include "core/base/own_file.hpp"

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>

namespace attnkit {

std::string own_file() {
  const auto here = reinterpret_cast<uintptr_t>(&own_file);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2 || here < begin || here >= end) continue;
    const auto path = line.find('/');
    return path == std::string::npos ? std::string() : line.substr(path);
  }
  return {};
}

}  // namespace attnkit
