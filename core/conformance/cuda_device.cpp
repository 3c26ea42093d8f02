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

// A function of libcuda.so.1, of whatever type is wanted.  Throws std::runtime_error where it is not there.
struct Function {
  const char* name;
  template <class Type>
  operator Type*() const {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error("the driver's libcuda.so.1 is not installed");
    void* const found = dlsym(library, name);
    if (found == nullptr) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
    return reinterpret_cast<Type*>(found);
  }
};

struct Driver {
  Result (*cuInit)(unsigned flags) = Function{"cuInit"};
  Result (*cuGetErrorString)(Result code, const char** text) = Function{"cuGetErrorString"};
  Result (*cuDeviceGetCount)(int* count) = Function{"cuDeviceGetCount"};
  Result (*cuDevicePrimaryCtxRetain)(void** context, int device) = Function{"cuDevicePrimaryCtxRetain"};
  Result (*cuCtxSetCurrent)(void* context) = Function{"cuCtxSetCurrent"};
  Result (*cuMemAlloc_v2)(Address* memory, size_t bytes) = Function{"cuMemAlloc_v2"};
  Result (*cuMemFree_v2)(Address memory) = Function{"cuMemFree_v2"};
  Result (*cuMemsetD8_v2)(Address memory, unsigned char byte, size_t bytes) = Function{"cuMemsetD8_v2"};
  Result (*cuMemcpyHtoDAsync_v2)(Address to, const void* from, size_t bytes,
                                 void* stream) = Function{"cuMemcpyHtoDAsync_v2"};
  Result (*cuMemcpyDtoHAsync_v2)(void* to, Address from, size_t bytes, void* stream) = Function{"cuMemcpyDtoHAsync_v2"};
  Result (*cuCtxSynchronize)() = Function{"cuCtxSynchronize"};
  Result (*cuStreamCreate)(void** stream, unsigned flags) = Function{"cuStreamCreate"};
  Result (*cuStreamDestroy_v2)(void* stream) = Function{"cuStreamDestroy_v2"};
  Result (*cuStreamSynchronize)(void* stream) = Function{"cuStreamSynchronize"};
  Result (*cuStreamBeginCapture_v2)(void* stream, int mode) = Function{"cuStreamBeginCapture_v2"};
  Result (*cuStreamEndCapture)(void* stream, void** graph) = Function{"cuStreamEndCapture"};
  Result (*cuGraphInstantiateWithFlags)(void** exec, void* graph,
                                        unsigned long long flags) = Function{"cuGraphInstantiateWithFlags"};
  Result (*cuGraphLaunch)(void* exec, void* stream) = Function{"cuGraphLaunch"};
  Result (*cuGraphExecDestroy)(void* exec) = Function{"cuGraphExecDestroy"};
  Result (*cuGraphDestroy)(void* graph) = Function{"cuGraphDestroy"};
};

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr int kThreadLocal = 1;       // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

class FirstDevice final : public CudaDevice {
 public:
  // Throws std::runtime_error where there is none.
  FirstDevice() {
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
