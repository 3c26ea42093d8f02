// Plugins and threads, shared by all models of a process.
#pragma once

#include <memory>
#include <mutex>

#include "core/base/threads.hpp"
#include "core/device/device.hpp"
#include "core/plugin/registry.hpp"

namespace attnkit::core {

struct Runtime {
  // device: of blocks, and of models whatever their manifests say; 0: blocks on the CPU, models where these say.
  Runtime(const std::vector<std::string>& folders, uint32_t thread_count, int32_t device)
      : registry(folders), threads(thread_count), device_type(device == 0 ? 1 : device), asked_device(device) {}
  const Registry registry;
  Threads threads;
  int32_t device_type, asked_device;

  // The first CUDA device, opened when first asked for.  Throws Error (ATTN_DEVICE).  Any thread.
  std::shared_ptr<const Device> device() {
    const std::lock_guard lock(device_mutex);
    if (!opened) opened = Device::open(0);
    return opened;
  }

 private:
  std::mutex device_mutex;
  std::shared_ptr<const Device> opened;
};

}  // namespace attnkit::core
