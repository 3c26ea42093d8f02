// What all models of a process share: loaded plugins and threads.
#pragma once

#include <memory>

#include "core/plugin/registry.hpp"
#include "core/base/threads.hpp"

namespace attnkit {

struct Runtime {
  Runtime(const std::vector<std::string>& folders, uint32_t thread_count, int32_t device)
      : registry(folders), threads(thread_count), device_type(device) {}
  const Registry registry;
  Threads threads;
  int32_t device_type;
};

}  // namespace attnkit
