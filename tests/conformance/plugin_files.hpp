// The plugins under test.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/text.hpp"

namespace attnkit::test {

using namespace core;

inline std::string stem(const std::string& path) { return std::filesystem::path(path).stem().string(); }

// Those that the environment names.
inline std::vector<std::string> named_files() {
  const char* list = std::getenv("ATTNKIT_CONFORMANCE_PLUGINS");
  return list != nullptr ? split(list, ':') : std::vector<std::string>{};
}

// These, else all in the build's plugin folder that compute on the CPU.
inline std::vector<std::string> plugin_files() {
  std::vector<std::string> files = named_files();
  if (files.empty())
    for (const auto& entry : std::filesystem::directory_iterator(ATTNKIT_PLUGIN_DIR))
      if (entry.path().extension() == ".so" && !stem(entry.path()).ends_with("-cuda")) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace attnkit::test
