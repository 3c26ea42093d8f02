// A plugin for CUDA as one of the CPU, so that every check and test of mechanisms serves it.
//
// The bridge is a strict host: what a run may read lies in device memory that ends where its allocation ends, the
// structs are overwritten before the stream runs, and every other run is captured into a graph first.
#pragma once
#include <attnkit/plugin.h>

#include <functional>
#include <string>

namespace attnkit::core::conformance {

// The calls that the bridge makes to CUDA, on any thread.  Whatever goes wrong in a copy is said by wait.
class CudaDevice {
 public:
  virtual ~CudaDevice() = default;
  // Memory of 0xFF bytes whose end, up to the alignment, is the allocation's.  Throws std::exception where there is
  // none.
  virtual void* allocate(uint64_t bytes, uint64_t alignment) = 0;
  virtual void release(void* memory) = 0;
  // A stream as attn_exec has it.
  virtual uintptr_t make_stream() = 0;
  virtual void free_stream(uintptr_t stream) = 0;
  virtual void copy_there(void* to, const void* from, uint64_t bytes, uintptr_t stream) = 0;
  virtual void copy_back(void* to, const void* from, uint64_t bytes, uintptr_t stream) = 0;
  // Calls act, which enqueues, captures that into a graph and launches it where act returns ATTN_OK.  ATTN_DEVICE where
  // it cannot be captured.
  virtual int32_t through_graph(uintptr_t stream, const std::function<int32_t()>& act) = 0;
  // Waits.  Returns what went wrong on the device, "" if nothing did.
  virtual std::string wait(uintptr_t stream) = 0;
};

// A type of 16 bits, as DLPack numbers it, and the way there and back.
struct HalfType {
  uint8_t code;
  uint16_t (*round)(float number);
  float (*widen)(uint16_t bits);
};

// A table whose runs are those of `plugin` on `device`, both of which outlive it; one at a time in a process.  Where
// `choose`, called by each plan, gives a type, f32 runs are in that type: what they bring is rounded on the way.
const attn_plugin& bridge(const attn_plugin& plugin, CudaDevice& device, const HalfType* (*choose)() = nullptr);

}  // namespace attnkit::core::conformance
