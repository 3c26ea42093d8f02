// A device: opened, its memory, its streams, and graphs of what they were given.
#include "core/device/cuda/device.hpp"

#include <algorithm>
#include <mutex>

namespace attnkit::core {

void DeviceHandle::make_current() const { device::expect(cudaSetDevice(id), "use device ", id); }

void* DeviceHandle::workspace_of(uintptr_t stream) {
  const std::shared_lock lock(mutex);
  const auto found = workspaces.find(stream);
  if (found == workspaces.end())
    throw invalid("the stream is none of device ", id, ": take one of make_stream of this device");
  return found->second;
}

DeviceHandle::~DeviceHandle() {
  for (const auto& [stream, workspace] : workspaces) {
    cudaStreamDestroy(device::as_stream(stream));
    cudaFree(workspace);
  }
}

namespace device {
namespace {

// Memory that CUDA refused, or another error.
[[noreturn]] void refuse_memory(const DeviceHandle& device, cudaError_t error, uint64_t bytes) {
  cudaGetLastError();
  if (error != cudaErrorMemoryAllocation) expect(error, "allocate ", bytes, " bytes");
  size_t free = 0, all = 0;
  cudaMemGetInfo(&free, &all);
  throw Refusal(ATTN_NO_MEMORY, say("device ", device.id, ", ", device.info.name, ", has no room for ", bytes,
                                    " bytes: ", free, " of ", all, " are free"));
}

}  // namespace

void make_stream(DeviceHandle& device, uintptr_t* stream) {
  void* workspace = nullptr;
  allocate(device, device.workspace_bytes, &workspace);
  cudaStream_t made = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
  if (error != cudaSuccess) cudaFree(workspace);
  expect(error, "make a stream");
  *stream = reinterpret_cast<uintptr_t>(made);
  const std::unique_lock lock(device.mutex);
  device.workspaces[*stream] = workspace;
}

void wait(DeviceHandle&, uintptr_t stream) {
  expect(cudaStreamSynchronize(as_stream(stream)), "finish what a stream was given");
}

void allocate(DeviceHandle& device, uint64_t bytes, void** memory) {
  if (const cudaError_t error = cudaMalloc(memory, std::max<uint64_t>(bytes, 1)); error != cudaSuccess)
    refuse_memory(device, error, bytes);
}

void allocate_host(DeviceHandle&, uint64_t bytes, void** memory) {
  const cudaError_t error = cudaMallocHost(memory, std::max<uint64_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Refusal(ATTN_NO_MEMORY, say("the machine has no room for ", bytes, " bytes that a device reads directly"));
  }
  expect(error, "allocate ", bytes, " bytes of the machine");
}

void from_host(DeviceHandle&, uintptr_t stream, void* to, const void* from, uint64_t bytes) {
  if (bytes == 0) return;
  expect(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, as_stream(stream)), "copy ", bytes,
         " bytes to the device");
}

void to_host(DeviceHandle& device, uintptr_t stream, void* to, const void* from, uint64_t bytes) {
  if (bytes > 0)
    expect(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, as_stream(stream)), "copy ", bytes,
           " bytes from the device");
  wait(device, stream);
}

void copy(DeviceHandle&, uintptr_t stream, void* to, const void* from, uint64_t bytes) {
  if (bytes == 0) return;
  expect(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, as_stream(stream)), "copy ", bytes, " bytes");
}

void zero(DeviceHandle&, uintptr_t stream, void* memory, uint64_t bytes) {
  if (bytes == 0) return;
  expect(cudaMemsetAsync(memory, 0, bytes, as_stream(stream)), "clear ", bytes, " bytes");
}

// Other threads may allocate meanwhile.
void begin_capture(DeviceHandle&, uintptr_t stream) {
  expect(cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal), "begin to capture a stream");
}

void end_capture(DeviceHandle& device, uintptr_t stream, DeviceGraph** graph) {
  cudaGraph_t captured = nullptr;
  expect(cudaStreamEndCapture(as_stream(stream), &captured), "end the capture of a stream");
  auto made = std::make_unique<DeviceGraph>(DeviceGraph{device.id, nullptr});
  const cudaError_t error = cudaGraphInstantiate(&made->work, captured, 0);
  cudaGraphDestroy(captured);
  expect(error, "make a graph of what was captured");
  *graph = made.release();
}

void launch(DeviceHandle& device, uintptr_t stream, const DeviceGraph* graph) {
  if (graph->device != device.id)
    throw invalid("the graph was captured on device ", graph->device, ", not ", device.id, ": capture it here too");
  expect(cudaGraphLaunch(graph->work, as_stream(stream)), "launch a graph");
}

}  // namespace device
}  // namespace attnkit::core
