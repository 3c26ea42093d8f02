#include "core/conformance/cuda_device.hpp"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

namespace attnkit::core::conformance {

namespace {

using Result = int;  // CUresult
using Address = unsigned long long;

// The functions of libcuda.so.1 by the names that it exports.
struct Driver {
  Result (*cuInit)(unsigned flags);
  Result (*cuGetErrorString)(Result code, const char** text);
  Result (*cuDeviceGetCount)(int* count);
  Result (*cuDevicePrimaryCtxRetain)(void** context, int device);
  Result (*cuCtxSetCurrent)(void* context);
  Result (*cuMemAlloc_v2)(Address* memory, size_t bytes);
  Result (*cuMemFree_v2)(Address memory);
  Result (*cuMemsetD8_v2)(Address memory, unsigned char byte, size_t bytes);
  Result (*cuMemcpyHtoDAsync_v2)(Address to, const void* from, size_t bytes, void* stream);
  Result (*cuMemcpyDtoHAsync_v2)(void* to, Address from, size_t bytes, void* stream);
  Result (*cuCtxSynchronize)();
  Result (*cuStreamCreate)(void** stream, unsigned flags);
  Result (*cuStreamDestroy_v2)(void* stream);
  Result (*cuStreamSynchronize)(void* stream);
  Result (*cuStreamBeginCapture_v2)(void* stream, int mode);
  Result (*cuStreamEndCapture)(void* stream, void** graph);
  Result (*cuGraphInstantiateWithFlags)(void** exec, void* graph, unsigned long long flags);
  Result (*cuGraphLaunch)(void* exec, void* stream);
  Result (*cuGraphExecDestroy)(void* exec);
  Result (*cuGraphDestroy)(void* graph);
};

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr int kThreadLocal = 1;       // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

Driver load_driver() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error("the driver's libcuda.so.1 is not installed");
  Driver d{};
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
  };
#define ATTNKIT_FIND(name) find(d.name, #name)
  ATTNKIT_FIND(cuInit);
  ATTNKIT_FIND(cuGetErrorString);
  ATTNKIT_FIND(cuDeviceGetCount);
  ATTNKIT_FIND(cuDevicePrimaryCtxRetain);
  ATTNKIT_FIND(cuCtxSetCurrent);
  ATTNKIT_FIND(cuMemAlloc_v2);
  ATTNKIT_FIND(cuMemFree_v2);
  ATTNKIT_FIND(cuMemsetD8_v2);
  ATTNKIT_FIND(cuMemcpyHtoDAsync_v2);
  ATTNKIT_FIND(cuMemcpyDtoHAsync_v2);
  ATTNKIT_FIND(cuCtxSynchronize);
  ATTNKIT_FIND(cuStreamCreate);
  ATTNKIT_FIND(cuStreamDestroy_v2);
  ATTNKIT_FIND(cuStreamSynchronize);
  ATTNKIT_FIND(cuStreamBeginCapture_v2);
  ATTNKIT_FIND(cuStreamEndCapture);
  ATTNKIT_FIND(cuGraphInstantiateWithFlags);
  ATTNKIT_FIND(cuGraphLaunch);
  ATTNKIT_FIND(cuGraphExecDestroy);
  ATTNKIT_FIND(cuGraphDestroy);
#undef ATTNKIT_FIND
  return d;
}

class FirstDevice final : public CudaDevice {
 public:
  // Throws std::runtime_error where there is none.
  FirstDevice() : d_(load_driver()) {
    expect(d_.cuInit(0), "cuInit");
    int count = 0;
    expect(d_.cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (count == 0) throw std::runtime_error("the driver knows no device");
    expect(d_.cuDevicePrimaryCtxRetain(&context_, 0), "cuDevicePrimaryCtxRetain");
    expect(d_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
  }

  void* allocate(uint64_t bytes, uint64_t alignment) override {
    const uint64_t used = (bytes + alignment - 1) / alignment * alignment, all = (used + 255) / 256 * 256;
    Address begin = 0;
    expect(d_.cuMemAlloc_v2(&begin, all), "cuMemAlloc");
    expect(d_.cuMemsetD8_v2(begin, 0xFF, all), "cuMemsetD8");
    expect(d_.cuCtxSynchronize(), "cuCtxSynchronize");
    void* const memory = reinterpret_cast<void*>(begin + (all - used));
    const std::lock_guard lock(mutex_);
    begins_[memory] = begin;
    return memory;
  }
  void release(void* memory) override {
    const std::lock_guard lock(mutex_);
    const auto found = begins_.find(memory);
    d_.cuMemFree_v2(found->second);
    begins_.erase(found);
  }
  uintptr_t make_stream() override {
    void* stream = nullptr;
    expect(d_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    expect(d_.cuStreamCreate(&stream, kNonBlocking), "cuStreamCreate");
    return reinterpret_cast<uintptr_t>(stream);
  }
  void free_stream(uintptr_t stream) override { d_.cuStreamDestroy_v2(pointer(stream)); }
  void copy_there(void* to, const void* from, uint64_t bytes, uintptr_t stream) override {
    d_.cuMemcpyHtoDAsync_v2(reinterpret_cast<Address>(to), from, bytes, pointer(stream));
  }
  void copy_back(void* to, const void* from, uint64_t bytes, uintptr_t stream) override {
    d_.cuMemcpyDtoHAsync_v2(to, reinterpret_cast<Address>(from), bytes, pointer(stream));
  }
  int32_t through_graph(uintptr_t stream, const std::function<int32_t()>& act) override {
    void *graph = nullptr, *exec = nullptr;
    if (d_.cuStreamBeginCapture_v2(pointer(stream), kThreadLocal) != 0) return ATTN_DEVICE;
    const int32_t code = act();
    if (d_.cuStreamEndCapture(pointer(stream), &graph) != 0) return ATTN_DEVICE;
    Result done = d_.cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (done == 0 && code == ATTN_OK) done = d_.cuGraphLaunch(exec, pointer(stream));
    if (exec != nullptr) d_.cuGraphExecDestroy(exec);
    d_.cuGraphDestroy(graph);
    return done == 0 ? code : ATTN_DEVICE;
  }
  std::string wait(uintptr_t stream) override {
    const Result done = d_.cuStreamSynchronize(pointer(stream));
    return done == 0 ? "" : text_of(done);
  }

 private:
  static void* pointer(uintptr_t stream) { return reinterpret_cast<void*>(stream); }
  std::string text_of(Result code) const {
    const char* text = nullptr;
    return d_.cuGetErrorString(code, &text) == 0 && text ? text : "CUDA's error " + std::to_string(code);
  }
  void expect(Result code, const char* function) const {
    if (code != 0) throw std::runtime_error(std::string(function) + ": " + text_of(code));
  }

  Driver d_;
  void* context_ = nullptr;
  std::mutex mutex_;
  std::map<void*, Address> begins_;
};

}  // namespace

CudaDevice* cuda_device(std::string* why) {
  static std::string reason;
  static CudaDevice* const device = []() -> CudaDevice* {
    try {
      return std::make_unique<FirstDevice>().release();  // what still runs when the process ends needs it
    } catch (const std::runtime_error& e) {
      reason = e.what();
      return nullptr;
    }
  }();
  if (why != nullptr) *why = reason;
  return device;
}

}  // namespace attnkit::core::conformance
