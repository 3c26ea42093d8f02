// Stands in for CUDA's header of this name: the part of it that attnkit's kernels and hosts use, run by emulator.hpp.
// Shared memory is declared with the macros of attnkit/kernels/cuda/device.hpp, whose stand-in lies beside this.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#include "cuda/emulator/emulator.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

#define EMULATOR_SITE int line = __builtin_LINE(), const char *file = __builtin_FILE()

inline void __syncthreads(EMULATOR_SITE) { emulator::barrier(false, {file, line}); }
inline int __syncthreads_count(int predicate, EMULATOR_SITE) { return emulator::barrier(predicate != 0, {file, line}); }
inline int __syncthreads_or(int predicate, EMULATOR_SITE) {
  return emulator::barrier(predicate != 0, {file, line}) > 0;
}
inline int __syncthreads_and(int predicate, EMULATOR_SITE) {
  return emulator::barrier(predicate == 0, {file, line}) == 0;
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, EMULATOR_SITE) { emulator::join_lanes(mask, {file, line}); }

namespace emulator {

// Every lane gets the value of lane `from`, which must take part; below 0, its own.
template <class T>
T shuffle(unsigned mask, T value, int from, Site site) {
  struct Lane {
    T in, out;
    int from;
  } mine{value, value, from};
  collective(
      mask,
      [](void* const* brought, unsigned mask, Site site) {
        for (int l = 0; l < 32; ++l) {
          if (!(mask >> l & 1)) continue;
          auto& to = *static_cast<Lane*>(brought[l]);
          if (to.from < 0) continue;
          if (!(mask >> to.from & 1))
            fail("lane " + std::to_string(l) + " reads lane " + std::to_string(to.from) +
                     ", which is not in the shuffle's mask",
                 site);
          to.out = static_cast<Lane*>(brought[to.from])->in;
        }
      },
      &mine, site);
  return mine.out;
}

// Every lane gets what Fold makes of all lanes' values, in the order of lanes.
template <class Fold, class T>
T reduce(unsigned mask, T value, Site site) {
  collective(
      mask,
      [](void* const* brought, unsigned mask, Site) {
        bool first = true;
        T all{};
        for (int l = 0; l < 32; ++l) {
          if (!(mask >> l & 1)) continue;
          const T in = *static_cast<T*>(brought[l]);
          all = first ? in : Fold{}(all, in);
          first = false;
        }
        for (int l = 0; l < 32; ++l)
          if (mask >> l & 1) *static_cast<T*>(brought[l]) = all;
      },
      &value, site);
  return value;
}

struct Smaller {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Larger {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

}  // namespace emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATOR_SITE) {
  const int base = static_cast<int>(emulator::lane()) / width * width;
  return emulator::shuffle(mask, value, base + (source & (width - 1)), {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_SITE) {
  const int lane = static_cast<int>(emulator::lane()), from = lane - static_cast<int>(delta);
  return emulator::shuffle(mask, value, from >= lane / width * width ? from : -1, {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_SITE) {
  const int lane = static_cast<int>(emulator::lane()), from = lane + static_cast<int>(delta);
  return emulator::shuffle(mask, value, from < (lane / width + 1) * width ? from : -1, {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMULATOR_SITE) {
  const int lane = static_cast<int>(emulator::lane()), from = lane ^ bits;
  return emulator::shuffle(mask, value, from < (lane / width + 1) * width ? from : -1, {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATOR_SITE) {
  return emulator::reduce<std::bit_or<>>(mask, predicate ? 1u << emulator::lane() : 0u, {file, line});
}
inline int __any_sync(unsigned mask, int predicate, EMULATOR_SITE) {
  return emulator::reduce<std::bit_or<>>(mask, predicate != 0 ? 1 : 0, {file, line});
}
inline int __all_sync(unsigned mask, int predicate, EMULATOR_SITE) {
  return emulator::reduce<std::bit_and<>>(mask, predicate != 0 ? 1 : 0, {file, line});
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value, EMULATOR_SITE) {
  return emulator::reduce<std::plus<>>(mask, value, {file, line});
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value, EMULATOR_SITE) {
  return emulator::reduce<emulator::Smaller>(mask, value, {file, line});
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value, EMULATOR_SITE) {
  return emulator::reduce<emulator::Larger>(mask, value, {file, line});
}

// Of global memory; no thread runs beside another.
template <class T>
T atomicAdd(T* to, std::type_identity_t<T> x) {
  const T before = *to;
  *to = before + x;
  return before;
}

inline int __ffs(int x) { return __builtin_ffs(x); }

template <class A, class B>
std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline void sincospi(double x, double* s, double* c) {
  *s = std::sin(3.14159265358979323846 * std::remainder(x, 2.0));
  *c = std::cos(3.14159265358979323846 * std::remainder(x, 2.0));
}
inline void sincospif(float x, float* s, float* c) {
  double sine, cosine;
  sincospi(double{x}, &sine, &cosine);
  *s = static_cast<float>(sine);
  *c = static_cast<float>(cosine);
}

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureUnjoined = 904
};
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0, cudaStreamCaptureModeThreadLocal = 1 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;

#define CUDART_VERSION 13000
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int multiProcessorCount, major, minor;
};
struct cudaFuncAttributes {
  size_t sharedSizeBytes;  // 0: arrays of a kernel are known, and counted, when it runs
  int binaryVersion;
};
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin = 97 };
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMallocHost(void** p, size_t bytes);
cudaError_t cudaFreeHost(void* p);

// Of a kernel's fault, the emulator's report.
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaMalloc(void** p, size_t bytes);
cudaError_t cudaFree(void* p);
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  void* attrs;
  unsigned numAttrs;
};

namespace emulator {
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> body);
cudaError_t allow_shared(const void* kernel, int bytes);
// For libraries that stand beside kernels: work that is none of them.
cudaError_t run_on_stream(cudaStream_t stream, std::function<void()> work);
}  // namespace emulator

template <class... Parameter, class... Argument>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameter...),
                               Argument&&... arguments) {
  return emulator::launch(
      *config, reinterpret_cast<const void*>(kernel),
      [kernel, all = std::tuple<Parameter...>(std::forward<Argument>(arguments)...)] { std::apply(kernel, all); });
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  return emulator::allow_shared(reinterpret_cast<const void*>(kernel), bytes);
}
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel*) {
  *attributes = {0, 90};
  return emulator::machine().has_kernels ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}
