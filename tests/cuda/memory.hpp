// What bridge.cpp takes from the emulator, and on a GPU from device/memory.cpp: nothing else of the emulator is there.
#pragma once
#include <cstddef>
#include <string>

namespace emulator {

// Device memory of 0xFF bytes that ends, up to the alignment, where the allocation ends.  On the emulator a page that
// nobody may touch begins there, and kernels and copies alone may touch the memory: anything else dies with a message.
void* allocate(size_t bytes, size_t alignment);
void release(void* p);

// Why the last kernel failed: one line, of the emulator with block, thread and source line; empty if none did.  Forgets
// it, so that the device may be used again.
std::string take_report();

}  // namespace emulator
