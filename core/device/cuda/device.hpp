// The device as the library's files share it, and the functions of its table, which throw Refusal.
#pragma once

#include <cuda_runtime.h>

#include <attnkit/kernels/cuda/launch.hpp>
#include <map>
#include <memory>
#include <shared_mutex>

#include "core/device/cuda/products.hpp"
#include "core/device/table.hpp"

namespace attnkit::core {

struct DeviceHandle {
  int32_t id = 0;
  DeviceInfo info{};
  uint64_t workspace_bytes = 0;
  device::Products products;
  std::shared_mutex mutex;
  std::map<uintptr_t, void*> workspaces;  // by stream

  DeviceHandle() = default;
  DeviceHandle(const DeviceHandle&) = delete;
  ~DeviceHandle();  // of the current device
  void make_current() const;
  // Errors    Refusal ATTN_INVALID for a stream that make_stream did not make here.
  void* workspace_of(uintptr_t stream);
};

struct DeviceGraph {
  int32_t device;
  cudaGraphExec_t work;
};

namespace device {

// Errors    Refusal ATTN_DEVICE unless error is cudaSuccess.
template <class... Piece>
void expect(cudaError_t error, const Piece&... what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // or the next launch would be blamed
  throw Refusal(ATTN_DEVICE, say("CUDA cannot ", what..., ": ", cudaGetErrorString(error)));
}

inline cudaStream_t as_stream(uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

// Starts kernel(arguments...); name: of the layers, for the message.
template <class... Parameter, class... Argument>
void start(uintptr_t stream, const char* name, void (*kernel)(Parameter...), int64_t blocks, unsigned threads,
           const Argument&... arguments) {
  constexpr int64_t kMost = 0x7FFFFFFF;
  if (blocks > kMost)
    throw invalid("the kernel of ", name, " would have ", blocks, " blocks, and at most ", kMost,
                  " are possible: give it fewer rows");
  attn_exec exec{};
  exec.stream = stream;
  attnkit::cuda::launch(name, kernel, {dim3(static_cast<unsigned>(blocks)), threads}, exec, arguments...);
}

// Whether the library has kernels for the current device.
cudaError_t has_kernels();

void make_stream(DeviceHandle& device, uintptr_t* stream);
void wait(DeviceHandle& device, uintptr_t stream);
void allocate(DeviceHandle& device, uint64_t bytes, void** memory);
void allocate_host(DeviceHandle& device, uint64_t bytes, void** memory);
void from_host(DeviceHandle& device, uintptr_t stream, void* to, const void* from, uint64_t bytes);
void to_host(DeviceHandle& device, uintptr_t stream, void* to, const void* from, uint64_t bytes);
void copy(DeviceHandle& device, uintptr_t stream, void* to, const void* from, uint64_t bytes);
void zero(DeviceHandle& device, uintptr_t stream, void* memory, uint64_t bytes);
void begin_capture(DeviceHandle& device, uintptr_t stream);
void end_capture(DeviceHandle& device, uintptr_t stream, DeviceGraph** graph);
void launch(DeviceHandle& device, uintptr_t stream, const DeviceGraph* graph);

void pack(DeviceHandle& device, uintptr_t stream, DeviceType type, const float* from, int64_t count, void* to);
void dense(DeviceHandle& device, uintptr_t stream, const DeviceDense* layer, const void* x, DeviceType of_x, void* y,
           DeviceType of_y, int64_t rows, DeviceActivation f, bool add, void* scratch);
void round_to_16_bits(DeviceHandle& device, uintptr_t stream, DeviceType type, const float* from, int64_t count,
                      void* to);
void norm(DeviceHandle& device, uintptr_t stream, const DeviceNorm* layer, const float* x, void* y, DeviceType of_y,
          int64_t rows);
void embed(DeviceHandle& device, uintptr_t stream, const DeviceEmbedding* layer, const int32_t* ids,
           const int32_t* lengths, const int32_t* first, int64_t batch, int64_t length, float* x);
void clear_padding(DeviceHandle& device, uintptr_t stream, float* x, const int32_t* lengths, int64_t batch,
                   int64_t length, int64_t width);
void add(DeviceHandle& device, uintptr_t stream, float* x, const void* y, DeviceType of_y, int64_t n);
void gate(DeviceHandle& device, uintptr_t stream, const float* x, const float* y, int64_t next, DeviceActivation f,
          void* to, DeviceType of_to, int64_t rows, int64_t width);
void scale(DeviceHandle& device, uintptr_t stream, float* x, float scale, const float* bias, int64_t rows,
           int64_t width);
void normalise_heads(DeviceHandle& device, uintptr_t stream, void* o, DeviceType of_o, int64_t rows, int64_t heads,
                     int64_t width);
void turn(DeviceHandle& device, uintptr_t stream, const DeviceRotary* layer, const float* x, void* y, DeviceType of_y,
          const int32_t* first, int64_t batch, int64_t length, int64_t heads, int64_t width);
void repeat_heads(DeviceHandle& device, uintptr_t stream, const float* from, void* to, DeviceType of_to, int64_t rows,
                  int64_t kv_heads, int64_t heads, int64_t width);
void spread(DeviceHandle& device, uintptr_t stream, const DeviceHeads* parts, int64_t count, const DeviceRotary* layer,
            const float* x, DeviceType of_to, const int32_t* first, int64_t batch, int64_t length);
void best(DeviceHandle& device, uintptr_t stream, const float* scores, int64_t rows, int64_t outputs, int32_t* best);
void top(DeviceHandle& device, uintptr_t stream, const float* scores, int64_t rows, int64_t outputs, int64_t count,
         int32_t* ids, float* top, float* norms);

// Part of dense layers: y (rows, outputs) = f(y + bias), bias NULL: none.
void activate(uintptr_t stream, void* y, DeviceType of_y, const float* bias, DeviceActivation f, int64_t rows,
              int64_t outputs);

}  // namespace device
}  // namespace attnkit::core
