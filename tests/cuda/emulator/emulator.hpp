// Runs CUDA kernels on the CPU: what stands behind include/cuda_runtime.h, and what a test asks of it.
//
// A kernel is compiled as C++.  The threads of a block are fibres that run one at a time, in an order drawn from a
// seed, each until it waits for others.  Operations of streams are queued, and run when something waits for them, in an
// order that obeys their dependencies alone.  The first fault stops the kernel; it is an error of the stream from then
// on.
#pragma once
#include <climits>
#include <cstdint>

#include "cuda/memory.hpp"

namespace emulator {

// Of everything that may come in any order: threads, blocks, streams.
void set_seed(uint64_t seed);

// Kernels that ran since the process began.
uint64_t kernels_run();

// The machine that is emulated, as a test wants it.
struct Machine {
  int driver = 13000;               // the CUDA that it is for; 0: there is none
  int devices;                      // ATTNKIT_EMULATED_DEVICES of the environment, or 1
  bool has_kernels = true;          // of the device's architecture
  size_t memory = size_t{1} << 35;  // bytes
  int most_shared = 227 * 1024;     // bytes of a block, at most so many
  int allocations = INT_MAX;        // that memory is left for
  int graphs = INT_MAX;             // launches of graphs that it is left for
  bool reuses = false;              // memory that was freed comes first
};
Machine& machine();

// A place in the source.
struct Site {
  const char* file;
  int line;
};

// Called by the headers that kernels include.

// Ends the calling thread of a kernel with a report, and the kernel with it.
[[noreturn]] void fail(const std::string& what, Site site);

// Waits for all threads of the block; returns for how many `predicate` holds.
int barrier(bool predicate, Site site);

// Waits for the lanes of mask, all of which must come with the same mask to the same place; the last of them calls
// finish with what each lane brought, by lane.
using Finish = void (*)(void* const* brought, unsigned mask, Site site);
void collective(unsigned mask, Finish finish, void* mine, Site site);
// The same, and orders what these lanes do to shared memory.
void join_lanes(unsigned mask, Site site);
unsigned lane();

// Shared memory, by offsets.  All accesses are held against those of other threads since the last barrier.
enum class Access { kRead, kWrite, kAtomic };
struct Part {
  uint32_t begin = 0, end = 0;  // bytes
  uint32_t unit = 2;            // bytes that are told apart: 2, or 4 where no access has fewer
};
Part static_shared(const void* key, size_t bytes, size_t alignment, uint32_t unit);
Part dynamic_shared();
// Fails for an element of `bytes` bytes at an offset outside its part.
[[noreturn]] void fail_beyond(int64_t offset, int64_t bytes, Part part, Site site);
void* access(uint32_t offset, size_t bytes, Part part, Access access, const Site& site);

// A copy that the calling thread has begun and that is there once it waited for it.
void begin_copy(uint32_t offset, size_t bytes, Part part, const void* from, Site site);
void commit_copies();
void wait_for_copies(int groups_left, Site site);

}  // namespace emulator
