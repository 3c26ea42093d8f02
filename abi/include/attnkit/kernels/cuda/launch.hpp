// Starts a kernel; no other way of doing it stands in a plugin.
#ifndef ATTNKIT_KERNELS_CUDA_LAUNCH_HPP
#define ATTNKIT_KERNELS_CUDA_LAUNCH_HPP
#include <cuda_runtime.h>

#include <attnkit/plugin.hpp>

namespace attnkit::cuda {

constexpr int32_t kCudaDevice = 2;  // DLPack's number

// Returns what a mechanism says of itself, for its variant, which takes f16 and bf16.
constexpr About on_cuda(About about) {
  about.device_type = kCudaDevice;
  about.takes_halves = true;
  return about;
}

struct Shape {
  dim3 blocks;
  unsigned threads;         // of a block
  size_t shared_bytes = 0;  // dynamic
};

// Bytes of shared memory that a block of the current device may have; without a device Hopper's, so that plans can be
// made on any machine.
inline int64_t most_shared() {
  int device = 0, bytes = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
                     bytes > 0;
  if (!known) cudaGetLastError();  // forgets it
  return known ? bytes : 227 * 1024;
}

// Enqueues kernel(arguments...) on the stream of a run.  name: of the mechanism, for the message.
// Errors    Refusal ATTN_DEVICE when CUDA refuses the launch.
template <class... Parameter, class... Argument>
void launch(const char* name, void (*kernel)(Parameter...), const Shape& shape, const attn_exec& exec,
            const Argument&... arguments) {
  constexpr size_t kWithoutAsking = 24 * 1024;  // of 48 KiB, to which the kernel's own arrays count
  cudaError_t error = cudaSuccess;
  if (shape.shared_bytes > kWithoutAsking) {
    // All that there is, whatever this launch needs: the limit is of all threads.
    cudaFuncAttributes own{};
    error = cudaFuncGetAttributes(&own, kernel);
    const int64_t most = most_shared() - static_cast<int64_t>(own.sharedSizeBytes);
    if (error == cudaSuccess)
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = reinterpret_cast<cudaStream_t>(exec.stream);
  if (error == cudaSuccess) error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error != cudaSuccess)
    throw Refusal(
        ATTN_DEVICE,
        say("CUDA cannot launch the kernel of ", name, " (", shape.blocks.x, " x ", shape.blocks.y, " blocks of ",
            shape.threads, " threads, ", shape.shared_bytes, " bytes of shared memory): ", cudaGetErrorString(error),
            error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice
                ? ": is there a GPU, and a driver for it?"
            : error == cudaErrorInvalidResourceHandle ? ": is the stream of the device that is current?"
                                                      : ""));
}

}  // namespace attnkit::cuda
#endif
