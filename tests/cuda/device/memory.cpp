// The functions that bridge.cpp takes from the emulator, by a GPU.
#include "cuda/memory.hpp"

#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <new>

namespace emulator {
namespace {

std::mutex mutex;
struct Block {
  void* begin;
  size_t bytes;
};
std::map<void*, Block> given;
std::multimap<size_t, void*> idle;  // by bytes: what was released comes back whole, since CUDA is slow to give memory

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

}  // namespace

// It ends where the allocation ends, so that compute-sanitizer sees what goes beyond.
void* allocate(size_t bytes, size_t alignment) {
  const size_t used = (bytes + alignment - 1) / alignment * alignment, all = (used + 255) / 256 * 256;
  const std::lock_guard lock(mutex);
  void* begin = nullptr;
  if (const auto found = idle.find(all); found != idle.end()) {
    begin = found->second;
    idle.erase(found);
  } else if (cudaMalloc(&begin, all) != cudaSuccess) {
    throw std::bad_alloc();
  }
  static const cudaStream_t stream = make_stream();
  cudaMemsetAsync(begin, 0xFF, all, stream);
  cudaStreamSynchronize(stream);  // and not the device, which no thread may while another one captures
  void* const p = static_cast<char*>(begin) + (all - used);
  given[p] = {begin, all};
  return p;
}

void release(void* p) {
  const std::lock_guard lock(mutex);
  const auto found = given.find(p);
  if (found == given.end()) return;
  idle.emplace(found->second.bytes, found->second.begin);
  given.erase(found);
}

std::string take_report() { return cudaGetErrorString(cudaGetLastError()); }

}  // namespace emulator
