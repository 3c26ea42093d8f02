// A device whose library is loaded when it is asked for, its memory, streams and graphs: the functions of table.hpp as
// C++ values, failing by exception.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/base/error.hpp"
#include "core/device/table.hpp"

namespace attnkit::core {

class Device : public std::enable_shared_from_this<Device> {
 public:
  // The library is that of ATTNKIT_DEVICE_LIBRARY in the environment, which set-uid programs ignore, else
  // libattnkit_cuda.so beside libattnkit, else as the loader finds it.  Throws Error (ATTN_DEVICE): no library, one of
  // another version, no driver, no device.
  static std::shared_ptr<Device> open(int32_t id);
  ~Device();
  Device(const Device&) = delete;

  // Calls a function of the table that takes the device and returns a code.  Throws Error.
  template <class... Parameters, class... Arguments>
  void call(int32_t (*DeviceTable::*function)(DeviceHandle*, Parameters...), Arguments... arguments) const {
    attn_error err = empty_error();
    check((table_->*function)(handle_, arguments..., &err), err);
  }
  void release(void* memory) const { table_->release(handle_, memory); }
  const DeviceTable& table() const { return *table_; }
  const std::string& name() const { return name_; }

 private:
  friend class CurrentDevice;
  friend class DeviceMemory;
  friend class PinnedMemory;
  friend class Stream;
  Device() = default;
  void check(int32_t code, const attn_error& err) const;

  const DeviceTable* table_ = nullptr;
  DeviceHandle* handle_ = nullptr;
  std::string name_;
};

// The device, if any, is that of the calling thread while this lives; then the former one is, which other CUDA of the
// process counts on.
class CurrentDevice {
 public:
  explicit CurrentDevice(const Device* device);
  ~CurrentDevice() {
    if (device_) device_->table_->make_former_current(former_);
  }
  CurrentDevice(const CurrentDevice&) = delete;

 private:
  const Device* device_;
  int32_t former_ = 0;
};

// Memory of a device, contents undefined.  Its device must outlive it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const Device& device, uint64_t bytes);
  ~DeviceMemory() { reset(); }
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  void reset();

 private:
  void swap(DeviceMemory& other) {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  const Device* device_ = nullptr;
  char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Memory of the host from which copies to the device need no other copy; grows, and then forgets what it held.
class PinnedMemory {
 public:
  explicit PinnedMemory(const Device& device) : device_(device) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  char* get(uint64_t bytes);
  char* data() const { return data_; }

 private:
  const Device& device_;
  char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Runs in order what is enqueued.
class Stream {
 public:
  explicit Stream(const Device& device);
  ~Stream();
  Stream(const Stream&) = delete;
  uintptr_t get() const { return stream_; }

  void wait() const;
  // to_host waits; from_host has taken the bytes when it returns, unless they are pinned.
  void from_host(void* to, const void* from, uint64_t bytes) const;
  void to_host(void* to, const void* from, uint64_t bytes) const;
  void copy(void* to, const void* from, uint64_t bytes) const;
  void zero(void* memory, uint64_t bytes) const;
  // Keeps what `enqueue` puts into the stream instead of running it.
  using Graph = std::unique_ptr<DeviceGraph, void (*)(DeviceGraph*)>;
  template <class F>
  Graph capture(F&& enqueue) const {
    begin_capture();
    try {
      enqueue();
    } catch (...) {
      drop_capture();
      throw;
    }
    return end_capture();
  }
  void launch(const Graph& graph) const;

 private:
  void begin_capture() const;
  Graph end_capture() const;
  void drop_capture() const;

  const Device& device_;
  uintptr_t stream_ = 0;
};

// The table of the library that is found; its version is checked.  Throws Error (ATTN_DEVICE).
const DeviceTable& load_device_library();
std::string file_of(const DeviceTable& table);

}  // namespace attnkit::core
