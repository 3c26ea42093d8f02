// operator new and aligned_alloc, which core's buffers use, that fail when a test says so: for the one file of a
// program that includes this.
#pragma once

#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace {

// Of this thread: others of the runtime come and go.
thread_local int64_t blocks = 0;
thread_local int64_t made = 0;
thread_local int64_t left = -1;  // allocations of this thread that succeed before one fails; below 0: all do
thread_local bool goes_on = false, failed = false;
// Asked where one is about to fail; true: it does not, and the next one is.
bool (*spared)() = nullptr;

// Whether the allocation that is asked for is one that fails.
bool fails() {
  if (left != 0) {
    if (left > 0) --left;
    return false;
  }
  left = -1;  // not within the question
  const bool now = !spared || !spared();
  if (!now || goes_on) left = 0;
  failed |= now;
  return now;
}

void* aligned(size_t bytes, size_t alignment) {
  void* p = nullptr;
  return posix_memalign(&p, alignment, bytes) == 0 ? p : nullptr;
}

void* allocate(size_t bytes, size_t alignment) {
  void* const p = fails() ? nullptr : aligned(bytes, alignment);
  if (!p) throw std::bad_alloc();
  ++blocks;
  ++made;
  return p;
}

void release(void* p) noexcept {
  if (p) --blocks;
  std::free(p);
}

}  // namespace

extern "C" __attribute__((noinline)) void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return fails() ? nullptr : aligned(bytes, alignment);
}
__attribute__((noinline)) void* operator new(size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
__attribute__((noinline)) void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
__attribute__((noinline)) void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
__attribute__((noinline)) void operator delete(void* p) noexcept { release(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { release(p); }
__attribute__((noinline)) void operator delete(void* p, std::align_val_t) noexcept { release(p); }
__attribute__((noinline)) void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }
