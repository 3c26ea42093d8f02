// Stands in for the driver's libcuda.so.1, by the emulator: what core/conformance/cuda_device.cpp asks of it.
#include <cuda_runtime.h>

#include "cuda/emulator/emulator.hpp"

#define EMULATED extern "C" __attribute__((visibility("default"))) int

namespace {

int code_of(cudaError_t error) { return static_cast<int>(error); }
cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
void* memory_of(unsigned long long address) { return reinterpret_cast<void*>(address); }

}  // namespace

EMULATED cuInit(unsigned) { return 0; }
EMULATED cuDeviceGetCount(int* count) {
  *count = emulator::machine().devices;
  return 0;
}
EMULATED cuDevicePrimaryCtxRetain(void** context, int) {
  *context = nullptr;
  return 0;
}
EMULATED cuCtxSetCurrent(void*) { return 0; }
EMULATED cuGetErrorString(int code, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(code));
  return 0;
}
EMULATED cuMemAlloc_v2(unsigned long long* memory, size_t bytes) {
  *memory = reinterpret_cast<unsigned long long>(emulator::allocate(bytes, 256));
  return 0;
}
EMULATED cuMemFree_v2(unsigned long long memory) {
  emulator::release(memory_of(memory));
  return 0;
}
EMULATED cuMemsetD8_v2(unsigned long long memory, unsigned char byte, size_t bytes) {
  return code_of(cudaMemsetAsync(memory_of(memory), byte, bytes, nullptr));
}
EMULATED cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, void* stream) {
  return code_of(cudaMemcpyAsync(memory_of(to), from, bytes, cudaMemcpyHostToDevice, stream_of(stream)));
}
EMULATED cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void* stream) {
  return code_of(cudaMemcpyAsync(to, memory_of(from), bytes, cudaMemcpyDeviceToHost, stream_of(stream)));
}
EMULATED cuCtxSynchronize() { return code_of(cudaDeviceSynchronize()); }
EMULATED cuStreamCreate(void** stream, unsigned flags) {
  cudaStream_t made = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&made, flags);
  *stream = made;
  return code_of(error);
}
EMULATED cuStreamDestroy_v2(void* stream) { return code_of(cudaStreamDestroy(stream_of(stream))); }
EMULATED cuStreamSynchronize(void* stream) { return code_of(cudaStreamSynchronize(stream_of(stream))); }
EMULATED cuStreamBeginCapture_v2(void* stream, int) {
  return code_of(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal));
}
EMULATED cuStreamEndCapture(void* stream, void** graph) {
  cudaGraph_t made = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream_of(stream), &made);
  *graph = made;
  return code_of(error);
}
EMULATED cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
  cudaGraphExec_t made = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&made, static_cast<cudaGraph_t>(graph));
  *exec = made;
  return code_of(error);
}
EMULATED cuGraphLaunch(void* exec, void* stream) {
  return code_of(cudaGraphLaunch(static_cast<cudaGraphExec_t>(exec), stream_of(stream)));
}
EMULATED cuGraphExecDestroy(void* exec) { return code_of(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec))); }
EMULATED cuGraphDestroy(void* graph) { return code_of(cudaGraphDestroy(static_cast<cudaGraph_t>(graph))); }
