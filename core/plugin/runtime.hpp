// Plugins and threads, shared by all models of a process.
#pragma once

#include "core/base/threads.hpp"
#include "core/plugin/registry.hpp"

namespace attnkit::core {

struct Runtime {
  Runtime(const std::vector<std::string>& folders, uint32_t thread_count, int32_t device)
      : registry(folders), threads(thread_count), device_type(device) {}
  const Registry registry;
  Threads threads;
  int32_t device_type;
};

}  // namespace attnkit::core
