// The table of the library: each function behind a boundary that no exception crosses, on the device that it names.
#include <cstring>
#include <mutex>

#include "core/device/cuda/device.hpp"

namespace attnkit::core {
namespace {

void make_former_current(int32_t former) {
  int now = former;
  if (cudaGetDevice(&now) == cudaSuccess && now != former) cudaSetDevice(former);
}

// Gives the calling thread back the device that it has now.
class Former {
 public:
  Former() { cudaGetDevice(&id_); }
  ~Former() { make_former_current(id_); }
  Former(const Former&) = delete;

 private:
  int id_ = 0;
};

template <auto f>
struct Bounded;
template <class... Argument, void (*f)(DeviceHandle&, Argument...)>
struct Bounded<f> {
  static int32_t call(DeviceHandle* device, Argument... arguments, attn_error* err) {
    return guarded(err, [&] {
      const Former former;
      device->make_current();
      f(*device, arguments...);
    });
  }
};

// Of a function that takes a stream, which must be one of the device's: CUDA would run copies on any, and calls that of
// a kernel an invalid handle.
template <auto f>
struct OnStream;
template <class... Argument, void (*f)(DeviceHandle&, uintptr_t, Argument...)>
struct OnStream<f> {
  static void check(DeviceHandle& device, uintptr_t stream, Argument... arguments) {
    device.workspace_of(stream);
    f(device, stream, arguments...);
  }
  static constexpr auto call = Bounded<check>::call;
};

// 13020 is 13.2.
std::string version(int number) { return say(number / 1000, ".", number % 1000 / 10); }

// Errors    Refusal ATTN_DEVICE unless device `id` is there.
void find_device(int32_t id) {
  int driver = 0, devices = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    throw Refusal(ATTN_DEVICE, say("there is no driver for CUDA here: install NVIDIA's, for CUDA ",
                                   version(CUDART_VERSION), " or newer, or set device = \"cpu\""));
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaErrorInsufficientDriver)
    throw Refusal(ATTN_DEVICE, say("the driver is too old: it is for CUDA ", version(driver),
                                   ", and libattnkit_cuda.so needs ", version(CUDART_VERSION), ": update the driver"));
  if (error != cudaErrorNoDevice) device::expect(error, "count the devices");
  if (devices == 0 || error == cudaErrorNoDevice)
    throw Refusal(ATTN_DEVICE, "there is a driver for CUDA, but no device: is one visible to this process?");
  if (id < 0 || id >= devices)
    throw Refusal(ATTN_DEVICE, say("there is no CUDA device ", id, ": this machine has ", devices, ", from 0"));
}

int32_t open(int32_t id, DeviceHandle** device, attn_error* err) {
  return guarded(err, [&] {
    find_device(id);
    const Former former;
    auto made = std::make_unique<DeviceHandle>();
    made->id = id;
    made->make_current();
    cudaDeviceProp properties{};
    device::expect(cudaGetDeviceProperties(&properties, id), "describe device ", id);
    DeviceInfo& info = made->info;
    std::memcpy(info.name, properties.name, sizeof info.name - 1);
    info.memory = properties.totalGlobalMem;
    info.multiprocessors = properties.multiProcessorCount;
    info.major = properties.major;
    info.minor = properties.minor;
    const cudaError_t error = device::has_kernels();
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction)
      throw Refusal(ATTN_DEVICE, say("device ", id, ", ", info.name, ", is an sm_", info.major, info.minor,
                                     ", and libattnkit_cuda.so has kernels for ", ATTNKIT_CUDA_ARCHITECTURES,
                                     " alone: build it with -DCMAKE_CUDA_ARCHITECTURES=", info.major, info.minor));
    device::expect(error, "load the kernels of libattnkit_cuda.so");
    made->workspace_bytes = uint64_t{info.major >= 9 ? 32u : 8u} << 20;  // as NVIDIA advises for Hopper, and below
    made->products.open(made->workspace_bytes);
    *device = made.release();
  });
}

void close(DeviceHandle* device) {
  const Former former;
  cudaSetDevice(device->id);
  delete device;
}

int32_t describe(const DeviceHandle* device, DeviceInfo* info, attn_error* err) {
  return guarded(err, [&] {
    const Former former;
    device->make_current();
    size_t free = 0, all = 0;
    device::expect(cudaMemGetInfo(&free, &all), "say how much memory is free");
    *info = device->info;
    info->free = free;
  });
}

int32_t make_current(const DeviceHandle* device, int32_t* former, attn_error* err) {
  return guarded(err, [&] {
    device::expect(cudaGetDevice(former), "say which device is current");
    device->make_current();
  });
}

void free_stream(DeviceHandle* device, uintptr_t stream) {
  void* workspace = nullptr;
  {
    const std::unique_lock lock(device->mutex);
    const auto found = device->workspaces.find(stream);
    if (found == device->workspaces.end()) return;
    workspace = found->second;
    device->workspaces.erase(found);
  }
  const Former former;
  cudaSetDevice(device->id);
  cudaStreamSynchronize(device::as_stream(stream));  // or what it runs would lose its workspace
  cudaStreamDestroy(device::as_stream(stream));
  cudaFree(workspace);
}

void release(DeviceHandle* device, void* memory) {
  const Former former;
  cudaSetDevice(device->id);
  cudaFree(memory);
}

void release_host(DeviceHandle* device, void* memory) {
  const Former former;
  cudaSetDevice(device->id);
  cudaFreeHost(memory);
}

void free_graph(DeviceGraph* graph) {
  if (graph == nullptr) return;
  cudaGraphExecDestroy(graph->work);
  delete graph;
}

uint64_t dense_scratch(const DeviceDense* layer, int64_t rows) {
  return has_16_bits(layer->type) ? static_cast<uint64_t>(rows * layer->inputs) * 2 : 0;
}

constexpr DeviceTable kTable = {
    sizeof(DeviceTable),
    attnkit::cuda::kCudaDevice,
    ATTNKIT_VERSION,
    open,
    close,
    describe,
    make_current,
    make_former_current,
    Bounded<device::make_stream>::call,
    free_stream,
    OnStream<device::wait>::call,
    Bounded<device::allocate>::call,
    release,
    Bounded<device::allocate_host>::call,
    release_host,
    OnStream<device::from_host>::call,
    OnStream<device::to_host>::call,
    OnStream<device::copy>::call,
    OnStream<device::zero>::call,
    OnStream<device::begin_capture>::call,
    OnStream<device::end_capture>::call,
    OnStream<device::launch>::call,
    free_graph,
    OnStream<device::pack>::call,
    dense_scratch,
    OnStream<device::dense>::call,
    OnStream<device::round_to_16_bits>::call,
    OnStream<device::norm>::call,
    OnStream<device::embed>::call,
    OnStream<device::clear_padding>::call,
    OnStream<device::add>::call,
    OnStream<device::gate>::call,
    OnStream<device::scale>::call,
    OnStream<device::normalise_heads>::call,
    OnStream<device::turn>::call,
    OnStream<device::repeat_heads>::call,
    OnStream<device::spread>::call,
    OnStream<device::best>::call,
    OnStream<device::top>::call,
};

}  // namespace
}  // namespace attnkit::core

extern "C" __attribute__((visibility("default"))) const attnkit::core::DeviceTable* attnkit_device_table() {
  return &attnkit::core::kTable;
}
