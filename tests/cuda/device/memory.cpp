// The functions that bridge.cpp takes from the emulator, by a GPU.
#include "cuda/memory.hpp"

#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <new>

namespace emulator {
namespace {

std::mutex mutex;
std::map<void*, void*> begins;

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

}  // namespace

// It ends where the allocation ends, so that compute-sanitizer sees what goes beyond.
void* allocate(size_t bytes, size_t alignment) {
  const size_t used = (bytes + alignment - 1) / alignment * alignment, all = (used + 255) / 256 * 256;
  void* begin = nullptr;
  if (cudaMalloc(&begin, all) != cudaSuccess) throw std::bad_alloc();
  const std::lock_guard lock(mutex);
  static const cudaStream_t stream = make_stream();
  cudaMemsetAsync(begin, 0xFF, all, stream);
  cudaStreamSynchronize(stream);  // and not the device, which no thread may while another one captures
  void* const given = static_cast<char*>(begin) + (all - used);
  begins[given] = begin;
  return given;
}

void release(void* p) {
  const std::lock_guard lock(mutex);
  const auto found = begins.find(p);
  if (found == begins.end()) return;
  cudaFree(found->second);
  begins.erase(found);
}

std::string take_report() { return cudaGetErrorString(cudaGetLastError()); }

}  // namespace emulator
