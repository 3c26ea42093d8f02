// One block of a kernel, run to its end.
#pragma once
#include <cuda_runtime.h>

#include <array>
#include <functional>
#include <string>

namespace emulator {

void set_block_seed(uint64_t seed);
uint64_t draw(uint64_t n);  // below n

// Returns what was wrong, empty if nothing.
std::string run_block(dim3 shape, size_t dynamic_bytes, const std::function<void()>& kernel);

// For a signal's handler: reports what the running thread of a kernel did, false if none runs; and ends that thread.
bool report_fault(const std::string& what);
[[noreturn]] void leave_kernel();

// Opens the memory of the device to whoever runs while this lives; see memory.cpp.
class Opened {
 public:
  Opened();
  ~Opened();
  Opened(const Opened&) = delete;
};
// Bytes beside allocations that were written, as a report; empty if none were.
std::string strayed_writes();
void* new_memory(size_t bytes, size_t alignment);
bool free_memory(void* p);
size_t used_memory();
// Memory of the machine that copies read when they run; other memory they have read when they are enqueued.
bool is_pinned(const void* p);
int current_device();  // of the calling thread

}  // namespace emulator
