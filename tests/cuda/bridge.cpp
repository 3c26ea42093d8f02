// The entry of a plugin for the CPU that runs one for CUDA on the emulator, or on a device by the same calls.  With
// ATTNKIT_CUDA_TYPE f16 or bf16 in the environment when a plan is made, its runs are in that type.
#include "core/conformance/bridge.hpp"

#include <attnkit/plugin.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>

#include "cuda/memory.hpp"

// The symbol of the variant, renamed.
extern "C" int32_t attn_cuda_main(const attn_host* host, const attn_plugin** plugin, attn_error* error);

namespace {

using attnkit::core::conformance::HalfType;

template <class T, T (*round_number)(float)>
uint16_t bits_of(float number) {
  const T half = round_number(number);
  uint16_t bits = 0;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}
template <class T, float (*widen_number)(T)>
float of_bits(uint16_t bits) {
  T half;
  std::memcpy(static_cast<void*>(&half), &bits, sizeof bits);
  return widen_number(half);
}

const HalfType* choose_type() {
  static const HalfType f16{2, bits_of<__half, __float2half_rn>, of_bits<__half, __half2float>},
      bf16{4, bits_of<__nv_bfloat16, __float2bfloat16_rn>, of_bits<__nv_bfloat16, __bfloat162float>};
  const char* name = std::getenv("ATTNKIT_CUDA_TYPE");
  if (name == nullptr) return nullptr;
  return std::strcmp(name, "bf16") == 0 ? &bf16 : &f16;
}

cudaStream_t stream_of(uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

class Runtime final : public attnkit::core::conformance::CudaDevice {
 public:
  void* allocate(uint64_t bytes, uint64_t alignment) override { return emulator::allocate(bytes, alignment); }
  void release(void* memory) override { emulator::release(memory); }
  uintptr_t make_stream() override {
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    return reinterpret_cast<uintptr_t>(stream);
  }
  void free_stream(uintptr_t stream) override { cudaStreamDestroy(stream_of(stream)); }
  void copy_there(void* to, const void* from, uint64_t bytes, uintptr_t stream) override {
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_of(stream));
  }
  void copy_back(void* to, const void* from, uint64_t bytes, uintptr_t stream) override {
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_of(stream));
  }
  int32_t through_graph(uintptr_t stream, const std::function<int32_t()>& act) override {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal);
    const int32_t code = act();
    if (cudaStreamEndCapture(stream_of(stream), &graph) != cudaSuccess) return ATTN_DEVICE;
    cudaGraphInstantiate(&exec, graph);
    if (code == ATTN_OK) cudaGraphLaunch(exec, stream_of(stream));
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return code;
  }
  std::string wait(uintptr_t stream) override {
    return cudaStreamSynchronize(stream_of(stream)) == cudaSuccess ? "" : emulator::take_report();
  }
};

}  // namespace

extern "C" int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* error) {
  static Runtime device;
  const attn_plugin* variant = nullptr;
  const int32_t code = attn_cuda_main(host, &variant, error);
  if (code == ATTN_OK) *plugin = &attnkit::core::conformance::bridge(*variant, device, choose_type);
  return code;
}
