// Streams, events and graphs: operations that wait for others, run in any order that their dependencies allow.
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/emulator/block.hpp"
#include "cuda/emulator/launches.hpp"

namespace {

// Of a graph, or waiting in streams.  An operation without work joins what it needs.
struct Operation {
  std::function<cudaError_t()> run;
  std::set<uint64_t> needs;
};

}  // namespace

struct CUgraph_st {
  std::vector<Operation> nodes;
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread = std::this_thread::get_id();
  bool valid = true;
};
struct CUgraphExec_st {
  std::vector<Operation> nodes;
};
struct CUstream_st {
  int device = emulator::current_device();
  bool follows_default = true;
  uint64_t last = 0;  // 0: none
  CUgraph_st* capture = nullptr;
  std::set<uint64_t> captured;  // nodes that the next one needs
};
struct CUevent_st {
  uint64_t operation = 0;
  CUgraph_st* capture = nullptr;
  std::set<uint64_t> captured;
};

namespace emulator {
namespace {

std::recursive_mutex mutex;  // one device, one operation at a time
using Lock = std::lock_guard<std::recursive_mutex>;
std::map<uint64_t, Operation> pending;
uint64_t newest = 0, kernels = 0;
CUstream_st default_stream;
std::set<CUstream_st*> streams;
std::map<const void*, size_t> shared_limits;
std::set<size_t> shared_asked;
thread_local cudaError_t last_error = cudaSuccess;
cudaError_t sticky = cudaSuccess;
std::string report;

cudaError_t returned(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Takes one of what memory is left for.
bool take(int& left) { return left > 0 ? left-- : false; }

CUstream_st& of(cudaStream_t stream) { return stream ? *stream : default_stream; }

cudaError_t enqueue(cudaStream_t stream, std::function<cudaError_t()> run) {
  if (sticky != cudaSuccess) return returned(sticky);
  CUstream_st& s = of(stream);
  if (s.capture) {
    s.capture->nodes.push_back({std::move(run), s.captured});
    s.captured = {s.capture->nodes.size() - 1};
    return cudaSuccess;
  }
  Operation op{std::move(run), {}};
  if (s.last) op.needs.insert(s.last);
  // The default stream waits for the others, and they for it.
  if (&s == &default_stream)
    for (const CUstream_st* other : streams) {
      if (other->follows_default && other->last) op.needs.insert(other->last);
    }
  else if (s.follows_default && default_stream.last)
    op.needs.insert(default_stream.last);
  s.last = ++newest;
  pending.emplace(s.last, std::move(op));
  return cudaSuccess;
}

bool waits(uint64_t id) { return pending.count(id) != 0; }

// Runs operations until this one has run, 0: all.
cudaError_t drain(uint64_t until) {
  if (sticky != cudaSuccess || (until ? !waits(until) : pending.empty())) return returned(sticky);
  const Opened opened;
  while (sticky == cudaSuccess && (until ? waits(until) : !pending.empty())) {
    std::vector<uint64_t> ready;
    for (const auto& [id, op] : pending) {
      bool now = true;
      for (const uint64_t need : op.needs) now = now && !waits(need);
      if (now) ready.push_back(id);
    }
    const uint64_t id = ready[draw(ready.size())];
    if (const auto& run = pending.at(id).run) sticky = run();
    pending.erase(id);
  }
  if (sticky != cudaSuccess) pending.clear();
  return returned(sticky);
}

// Waiting, for `waited` or for all, is not allowed while a stream captures, and spoils the capture.  A capture of the
// mode of its thread takes no notice of what other threads do, unless they wait for its own streams.
bool spoils_capture(const CUstream_st* waited = nullptr) {
  bool any = false;
  streams.insert(&default_stream);
  for (CUstream_st* s : streams)
    if (s->capture && (s == waited || s->capture->mode == cudaStreamCaptureModeGlobal ||
                       s->capture->thread == std::this_thread::get_id())) {
      s->capture->valid = false;
      any = true;
    }
  streams.erase(&default_stream);
  return any;
}

cudaError_t run_kernel(dim3 grid, dim3 shape, size_t shared_bytes, const std::function<void()>& body) {
  ++kernels;
  const uint64_t count = uint64_t{grid.x} * grid.y * grid.z;
  std::vector<uint64_t> order(count);
  std::iota(order.begin(), order.end(), uint64_t{0});
  for (uint64_t i = count; i > 1; --i) std::swap(order[i - 1], order[draw(i)]);
  gridDim = grid;
  for (const uint64_t b : order) {
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    report = run_block(shape, shared_bytes, body);
    if (!report.empty()) return cudaErrorLaunchFailure;
  }
  report = strayed_writes();
  return report.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace

void set_seed(uint64_t seed) { set_block_seed(seed); }

std::string take_report() {
  const Lock lock(mutex);
  sticky = last_error = cudaSuccess;
  pending.clear();
  return std::exchange(report, {});
}

void* allocate(size_t bytes, size_t alignment) {
  const Lock lock(mutex);
  return new_memory(bytes, alignment);
}

void release(void* p) { cudaFree(p); }

uint64_t kernels_run() { return kernels; }

std::set<size_t> take_shared_bytes() {
  const Lock lock(mutex);
  return std::exchange(shared_asked, {});
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> body) {
  const Lock lock(mutex);
  const dim3 grid = config.gridDim, shape = config.blockDim;
  const auto limit = shared_limits.find(kernel);
  if (grid.x - 1 >= 0x7FFFFFFFu || grid.y - 1 >= 65535u || grid.z - 1 >= 65535u || shape.x == 0 || shape.y == 0 ||
      shape.z == 0 || shape.z > 64 || uint64_t{shape.x} * shape.y * shape.z > 1024 ||
      config.dynamicSmemBytes > (limit == shared_limits.end() ? 48 * 1024 : limit->second))
    return returned(cudaErrorInvalidConfiguration);
  if (config.stream && config.stream->device != current_device()) return returned(cudaErrorInvalidResourceHandle);
  if (config.dynamicSmemBytes > 0) shared_asked.insert(config.dynamicSmemBytes);
  return enqueue(config.stream, [grid, shape, bytes = config.dynamicSmemBytes, body = std::move(body)] {
    return run_kernel(grid, shape, bytes, body);
  });
}

cudaError_t run_on_stream(cudaStream_t stream, std::function<void()> work) {
  const Lock lock(mutex);
  if (stream && stream->device != current_device()) return returned(cudaErrorInvalidResourceHandle);
  return enqueue(stream, [work = std::move(work)] {
    work();
    return cudaSuccess;
  });
}

cudaError_t allow_shared(const void* kernel, int bytes) {
  const Lock lock(mutex);
  if (bytes < 0 || bytes > machine().most_shared) return returned(cudaErrorInvalidValue);
  shared_limits[kernel] = static_cast<size_t>(bytes);
  return cudaSuccess;
}

}  // namespace emulator

using emulator::default_stream;
using emulator::drain;
using emulator::enqueue;
using emulator::Lock;
using emulator::mutex;
using emulator::returned;
using emulator::streams;

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorLaunchFailure:
      return emulator::report.c_str();
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
  }
  return "unknown error";
}

cudaError_t cudaGetLastError() { return std::exchange(emulator::last_error, cudaSuccess); }

cudaError_t cudaMalloc(void** p, size_t bytes) {
  const Lock lock(mutex);
  *p = emulator::take(emulator::machine().allocations) ? emulator::allocate(bytes, 256) : nullptr;
  return returned(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* p) {
  const Lock lock(mutex);
  if (p == nullptr) return cudaSuccess;
  if (emulator::spoils_capture()) return returned(cudaErrorStreamCaptureUnsupported);
  if (const cudaError_t error = drain(0); error != cudaSuccess) return error;
  return returned(emulator::free_memory(p) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t stream) {
  const Lock lock(mutex);
  if (emulator::of(stream).capture) return returned(cudaErrorStreamCaptureUnsupported);
  return cudaMalloc(p, bytes);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  const Lock lock(mutex);
  if (emulator::of(stream).capture) return returned(cudaErrorStreamCaptureUnsupported);
  return enqueue(stream, [p] { return emulator::free_memory(p) ? cudaSuccess : cudaErrorInvalidValue; });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const Lock lock(mutex);
  if (kind == cudaMemcpyHostToDevice && !emulator::of(stream).capture && !emulator::is_pinned(from)) {
    const auto* begin = static_cast<const char*>(from);
    return enqueue(stream, [to, taken = std::vector<char>(begin, begin + bytes)] {
      if (!taken.empty()) std::memcpy(to, taken.data(), taken.size());
      return cudaSuccess;
    });
  }
  return enqueue(stream, [to, from, bytes] {
    if (bytes) std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const Lock lock(mutex);
  if (emulator::spoils_capture()) return returned(cudaErrorStreamCaptureUnsupported);
  if (const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr); error != cudaSuccess) return error;
  return drain(default_stream.last);
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  const Lock lock(mutex);
  return enqueue(stream, [to, byte, bytes] {
    if (bytes) std::memset(to, byte, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const Lock lock(mutex);
  *stream = new CUstream_st;
  (*stream)->follows_default = (flags & cudaStreamNonBlocking) == 0;
  streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(mutex);
  if (streams.erase(stream) == 0) return returned(cudaErrorInvalidValue);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(mutex);
  if (emulator::spoils_capture(&emulator::of(stream))) return returned(cudaErrorStreamCaptureUnsupported);
  const uint64_t last = emulator::of(stream).last;
  return last ? drain(last) : returned(emulator::sticky);
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock(mutex);
  if (emulator::spoils_capture()) return returned(cudaErrorStreamCaptureUnsupported);
  return drain(0);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(mutex);
  if (const cudaError_t error = enqueue(stream, nullptr); error != cudaSuccess) return error;
  const CUstream_st& s = emulator::of(stream);
  *event = {s.capture ? 0 : s.last, s.capture, s.captured};
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(mutex);
  return emulator::waits(event->operation) ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(mutex);
  if (emulator::spoils_capture()) return returned(cudaErrorStreamCaptureUnsupported);
  return event->operation ? drain(event->operation) : cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(mutex);
  CUstream_st& s = emulator::of(stream);
  if (event->capture) {  // the stream joins the capture
    s.capture = event->capture;
    s.captured.insert(event->captured.begin(), event->captured.end());
    return cudaSuccess;
  }
  if (event->operation == 0) return cudaSuccess;
  if (s.capture) return returned(cudaErrorStreamCaptureUnsupported);
  if (const cudaError_t error = enqueue(stream, nullptr); error != cudaSuccess) return error;
  emulator::pending.at(s.last).needs.insert(event->operation);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Lock lock(mutex);
  if (!stream || stream->capture) return returned(cudaErrorStreamCaptureUnsupported);
  stream->capture = new CUgraph_st;
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(mutex);
  *graph = nullptr;
  CUgraph_st* made = stream ? stream->capture : nullptr;
  if (!made || made->origin != stream) return returned(cudaErrorInvalidValue);
  std::set<uint64_t> joined;
  std::vector<uint64_t> next(stream->captured.begin(), stream->captured.end());
  while (!next.empty()) {
    const uint64_t node = next.back();
    next.pop_back();
    if (joined.insert(node).second)
      next.insert(next.end(), made->nodes[node].needs.begin(), made->nodes[node].needs.end());
  }
  for (CUstream_st* s : streams)
    if (s->capture == made) {
      s->capture = nullptr;
      s->captured.clear();
    }
  const cudaError_t error = !made->valid                         ? cudaErrorStreamCaptureInvalidated
                            : joined.size() < made->nodes.size() ? cudaErrorStreamCaptureUnjoined
                                                                 : cudaSuccess;
  if (error == cudaSuccess)
    *graph = made;
  else
    delete made;
  return returned(error);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Lock lock(mutex);
  if (emulator::of(stream).capture) return returned(cudaErrorStreamCaptureUnsupported);
  if (!emulator::take(emulator::machine().graphs)) return returned(cudaErrorMemoryAllocation);
  // A node waits for its own and for what was in the stream; the stream goes on after all of them.
  if (const cudaError_t error = enqueue(stream, nullptr); error != cudaSuccess) return error;
  const uint64_t begin = emulator::of(stream).last;
  for (const Operation& node : exec->nodes) {
    Operation op{node.run, {begin}};
    for (const uint64_t need : node.needs) op.needs.insert(begin + 1 + need);
    emulator::pending.emplace(++emulator::newest, std::move(op));
  }
  const uint64_t end = emulator::newest;
  if (const cudaError_t error = enqueue(stream, nullptr); error != cudaSuccess) return error;
  for (uint64_t id = begin + 1; id <= end; ++id) emulator::pending.at(emulator::of(stream).last).needs.insert(id);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
