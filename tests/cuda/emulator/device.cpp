// The machine: its driver, its devices, of which all are one, and its own memory that they read.
#include <cstdlib>
#include <map>
#include <mutex>

#include "cuda/emulator/block.hpp"

namespace emulator {
namespace {

std::mutex mutex;  // of what follows
std::map<const char*, size_t> pinned;
thread_local int current = 0;

int devices_asked() {
  const char* devices = std::getenv("ATTNKIT_EMULATED_DEVICES");
  return devices ? std::atoi(devices) : 1;
}

}  // namespace

Machine& machine() {
  static Machine one{.devices = devices_asked()};
  return one;
}

int current_device() { return current; }

bool is_pinned(const void* p) {
  const std::lock_guard lock(mutex);
  const auto* at = static_cast<const char*>(p);
  const auto after = pinned.upper_bound(at);
  return after != pinned.begin() && at < std::prev(after)->first + std::prev(after)->second;
}

}  // namespace emulator

using emulator::machine;

cudaError_t cudaDriverGetVersion(int* version) {
  *version = machine().driver;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (machine().driver < CUDART_VERSION) return cudaErrorInsufficientDriver;
  if (machine().devices == 0) return cudaErrorNoDevice;
  *count = machine().devices;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= machine().devices) return cudaErrorInvalidDevice;
  *properties = {"an emulated device", machine().memory, 1, 9, 0};
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= machine().devices) return cudaErrorInvalidDevice;
  emulator::current = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = emulator::current;
  return machine().devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
  if (device < 0 || device >= machine().devices) return cudaErrorInvalidDevice;
  *value = machine().most_shared;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = machine().memory;
  *free = machine().memory - std::min(machine().memory, emulator::used_memory());
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  *p = bytes > machine().memory ? nullptr : std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*p == nullptr) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(emulator::mutex);
  emulator::pinned[static_cast<const char*>(*p)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  const std::lock_guard lock(emulator::mutex);
  if (p != nullptr && emulator::pinned.erase(static_cast<const char*>(p)) == 0) return cudaErrorInvalidValue;
  std::free(p);
  return cudaSuccess;
}
