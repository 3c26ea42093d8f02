// A library of a device for tests of models: the functions of core/device/table.hpp as plain loops that streams of the
// emulator run, in memory that nothing else may touch.  ATTNKIT_TEST_DEVICE_MEMORY in the environment is how many
// bytes there are, ATTNKIT_TEST_DEVICE_VERSION the version that it says it has.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "core/device/table.hpp"

using namespace attnkit::core;

namespace attnkit::core {
struct DeviceHandle {
  std::mutex mutex;
  std::map<void*, uint64_t> memory;
  uint64_t used = 0;
  std::atomic<uint64_t> graphs{0};
};
struct DeviceGraph {
  cudaGraphExec_t exec;
};
}  // namespace attnkit::core

namespace {

std::map<const void*, bool> pinned;
std::mutex pinned_mutex;

int32_t refuse(attn_error* err, int32_t code, const char* text) {
  err->code = code;
  std::snprintf(err->message, sizeof err->message, "%s", text);
  return code;
}

int32_t code_of(cudaError_t error, attn_error* err) {
  return error == cudaSuccess ? ATTN_OK : refuse(err, ATTN_DEVICE, cudaGetErrorString(error));
}

cudaStream_t of(uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

int32_t on(uintptr_t stream, attn_error* err, std::function<void()> work) {
  return code_of(emulator::run_on_stream(of(stream), std::move(work)), err);
}

float activated(float x, DeviceActivation f) {
  switch (f) {
    case DeviceActivation::none:
      return x;
    case DeviceActivation::relu:
      return x < 0 ? 0 : x;
    case DeviceActivation::gelu:
      return static_cast<float>(0.5 * x * std::erfc(-x / std::sqrt(2.0)));
    case DeviceActivation::gelu_tanh:
      return static_cast<float>(0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))));
    case DeviceActivation::quick_gelu:
      return static_cast<float>(x / (1 + std::exp(-1.702 * x)));
    case DeviceActivation::silu:
      return static_cast<float>(x / (1 + std::exp(-double{x})));
  }
  return x;
}

uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float rounded(float x) {
  const uint32_t bits = uint32_t{to_bf16(x)} << 16;
  float back;
  std::memcpy(&back, &bits, 4);
  return back;
}

float weight(const DeviceDense& layer, int64_t i) {
  if (layer.type != DeviceType::bf16) return static_cast<const float*>(layer.weight)[i];
  const uint32_t bits = uint32_t{static_cast<const uint16_t*>(layer.weight)[i]} << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

void run_dense(const DeviceDense& l, const float* x, float* y, int64_t rows, DeviceActivation f, bool add) {
  for (int64_t o = 0; o < l.outputs; ++o)
    for (int64_t r = 0; r < rows; ++r) {
      float sum = l.bias ? l.bias[o] : 0;
      for (int64_t i = 0; i < l.inputs; ++i) {
        const float in = x[r * l.inputs + i];
        sum += (l.type == DeviceType::bf16 ? rounded(in) : in) * weight(l, o * l.inputs + i);
      }
      float& to = y[r * l.outputs + o];
      to = add ? to + sum : activated(sum, f);
    }
}

void run_norm(const DeviceNorm& l, const float* x, float* y, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r, x += l.width, y += l.width) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < l.width && !l.rms; ++i) mean += x[i] / static_cast<double>(l.width);
    for (int64_t i = 0; i < l.width; ++i) variance += (x[i] - mean) * (x[i] - mean) / static_cast<double>(l.width);
    for (int64_t i = 0; i < l.width; ++i)
      y[i] =
          static_cast<float>((x[i] - mean) / std::sqrt(variance + l.epsilon)) * l.weight[i] + (l.bias ? l.bias[i] : 0);
  }
}

void run_embed(const DeviceEmbedding& l, const int32_t* ids, const int32_t* lengths, const int32_t* first,
               int64_t batch, int64_t length, float* x) {
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < length; ++i)
      for (int64_t c = 0; c < l.width; ++c) {
        const int64_t p = (first ? first[b] : 0) + i;
        float& to = x[(b * length + i) * l.width + c];
        to = 0;
        if (i >= lengths[b]) continue;
        if (!l.zero_begin || p > 0) to = l.scale * l.table[ids[b * length + i] * l.width + c];
        if (l.positions) to += l.positions[p * l.width + c];
      }
}

void run_turn(const DeviceRotary& l, float* x, const int32_t* first, int64_t batch, int64_t length, int64_t heads,
              int64_t width) {
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < length; ++i) {
      const int64_t p = std::min((first ? first[b] : 0) + i, l.max_length - 1);
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t n = 0; n < l.pairs; ++n) {
          float* const head = x + ((b * length + i) * heads + h) * width;
          float &one = head[n * l.first], &other = head[n * l.first + l.second];
          const float cosine = l.turns[2 * (p * l.pairs + n)], sine = l.turns[2 * (p * l.pairs + n) + 1];
          const float turned = one * cosine - other * sine;
          other = other * cosine + one * sine;
          one = turned;
        }
    }
}

void run_top(const float* s, int64_t rows, int64_t outputs, int64_t count, int32_t* ids, float* top, float* norms) {
  std::vector<int32_t> order(static_cast<size_t>(outputs));
  for (int64_t r = 0; r < rows; ++r, s += outputs) {
    for (int64_t i = 0; i < outputs; ++i) order[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return s[a] > s[b]; });
    double sum = 0;
    for (int64_t i = 0; i < outputs; ++i) sum += std::exp(static_cast<double>(s[i]) - s[order[0]]);
    norms[r] = static_cast<float>(s[order[0]] + std::log(sum));
    for (int64_t i = 0; i < count; ++i) {
      ids[r * count + i] = order[static_cast<size_t>(i)];
      top[r * count + i] = s[order[static_cast<size_t>(i)]];
    }
  }
}

constexpr uint64_t dense_scratch_bytes = 512;  // that dense() fills, so that scratch that is not there shows

DeviceTable make() {
  DeviceTable t{};
  t.struct_size = sizeof t;
  t.device_type = 2;
  const char* const version = std::getenv("ATTNKIT_TEST_DEVICE_VERSION");
  t.version = version ? version : ATTNKIT_VERSION;
  t.open = [](int32_t id, DeviceHandle** device, attn_error* err) {
    if (id != 0) return refuse(err, ATTN_DEVICE, "no such device");
    *device = new DeviceHandle;
    return ATTN_OK;
  };
  t.close = [](DeviceHandle* d) { delete d; };
  t.describe = [](const DeviceHandle*, DeviceInfo* info, attn_error*) {
    *info = {"plain loops", 1 << 30, 1 << 30, 1, 9, 0};
    return ATTN_OK;
  };
  t.make_current = [](const DeviceHandle*, attn_error*) { return ATTN_OK; };
  t.make_stream = [](DeviceHandle*, uintptr_t* stream, attn_error* err) {
    return code_of(cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking), err);
  };
  t.free_stream = [](DeviceHandle*, uintptr_t s) {
    cudaStreamSynchronize(of(s));
    cudaStreamDestroy(of(s));
  };
  t.wait = [](DeviceHandle*, uintptr_t s, attn_error* err) { return code_of(cudaStreamSynchronize(of(s)), err); };
  t.allocate = [](DeviceHandle* d, uint64_t bytes, void** memory, attn_error* err) {
    const char* const limit = std::getenv("ATTNKIT_TEST_DEVICE_MEMORY");
    const std::lock_guard lock(d->mutex);
    if (limit && d->used + bytes > std::strtoull(limit, nullptr, 10))
      return refuse(err, ATTN_NO_MEMORY, "there is not so much memory");
    if (cudaMalloc(memory, bytes) != cudaSuccess) return refuse(err, ATTN_NO_MEMORY, "out of memory");
    d->memory[*memory] = bytes;
    d->used += bytes;
    return ATTN_OK;
  };
  t.release = [](DeviceHandle* d, void* memory) {
    const std::lock_guard lock(d->mutex);
    const auto at = d->memory.find(memory);
    d->used -= at->second;
    d->memory.erase(at);
    cudaFree(memory);
  };
  t.allocate_host = [](DeviceHandle*, uint64_t bytes, void** memory, attn_error*) {
    *memory = std::malloc(bytes);
    const std::lock_guard lock(pinned_mutex);
    pinned[*memory] = true;
    return ATTN_OK;
  };
  t.release_host = [](DeviceHandle*, void* memory) {
    const std::lock_guard lock(pinned_mutex);
    pinned.erase(memory);
    std::free(memory);
  };
  t.from_host = [](DeviceHandle*, uintptr_t s, void* to, const void* from, uint64_t bytes, attn_error* err) {
    const std::lock_guard lock(pinned_mutex);
    if (pinned.contains(from)) return on(s, err, [=] { std::memcpy(to, from, bytes); });
    const auto* const begin = static_cast<const char*>(from);
    return on(s, err,
              [to, taken = std::vector<char>(begin, begin + bytes)] { std::memcpy(to, taken.data(), taken.size()); });
  };
  t.to_host = [](DeviceHandle*, uintptr_t s, void* to, const void* from, uint64_t bytes, attn_error* err) {
    const int32_t code = on(s, err, [=] { std::memcpy(to, from, bytes); });
    return code != ATTN_OK ? code : code_of(cudaStreamSynchronize(of(s)), err);
  };
  t.copy = [](DeviceHandle*, uintptr_t s, void* to, const void* from, uint64_t bytes, attn_error* err) {
    return on(s, err, [=] { std::memcpy(to, from, bytes); });
  };
  t.zero = [](DeviceHandle*, uintptr_t s, void* memory, uint64_t bytes, attn_error* err) {
    return on(s, err, [=] { std::memset(memory, 0, bytes); });
  };
  t.begin_capture = [](DeviceHandle*, uintptr_t s, attn_error* err) {
    return code_of(cudaStreamBeginCapture(of(s), cudaStreamCaptureModeThreadLocal), err);
  };
  t.end_capture = [](DeviceHandle*, uintptr_t s, DeviceGraph** graph, attn_error* err) {
    cudaGraph_t made = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaError_t error = cudaStreamEndCapture(of(s), &made);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, made, 0);
    if (made) cudaGraphDestroy(made);
    if (error == cudaSuccess) *graph = new DeviceGraph{exec};
    return code_of(error, err);
  };
  t.launch = [](DeviceHandle*, uintptr_t s, const DeviceGraph* graph, attn_error* err) {
    return code_of(cudaGraphLaunch(graph->exec, of(s)), err);
  };
  t.free_graph = [](DeviceGraph* graph) {
    cudaGraphExecDestroy(graph->exec);
    delete graph;
  };
  t.pack = [](DeviceHandle*, uintptr_t s, DeviceType type, const float* from, int64_t count, void* to,
              attn_error* err) {
    const int32_t code = on(s, err, [=] {
      for (int64_t i = 0; i < count; ++i)
        if (type == DeviceType::bf16)
          static_cast<uint16_t*>(to)[i] = to_bf16(from[i]);
        else
          static_cast<float*>(to)[i] = from[i];
    });
    return code != ATTN_OK ? code : code_of(cudaStreamSynchronize(of(s)), err);
  };
  t.dense_scratch = [](const DeviceDense*, int64_t) { return dense_scratch_bytes; };
  t.dense = [](DeviceHandle*, uintptr_t s, const DeviceDense* layer, const float* x, float* y, int64_t rows,
               DeviceActivation f, bool add, void* scratch, attn_error* err) {
    return on(s, err, [=, l = *layer] {
      std::memset(scratch, 0xFF, dense_scratch_bytes);
      run_dense(l, x, y, rows, f, add);
    });
  };
  t.norm = [](DeviceHandle*, uintptr_t s, const DeviceNorm* layer, const float* x, float* y, int64_t rows,
              attn_error* err) { return on(s, err, [=, l = *layer] { run_norm(l, x, y, rows); }); };
  t.embed = [](DeviceHandle*, uintptr_t s, const DeviceEmbedding* layer, const int32_t* ids, const int32_t* lengths,
               const int32_t* first, int64_t batch, int64_t length, float* x, attn_error* err) {
    return on(s, err, [=, l = *layer] { run_embed(l, ids, lengths, first, batch, length, x); });
  };
  t.clear_padding = [](DeviceHandle*, uintptr_t s, float* x, const int32_t* lengths, int64_t batch, int64_t length,
                       int64_t width, attn_error* err) {
    return on(s, err, [=] {
      for (int64_t b = 0; b < batch; ++b)
        std::fill(x + (b * length + lengths[b]) * width, x + (b + 1) * length * width, 0.0f);
    });
  };
  t.add = [](DeviceHandle*, uintptr_t s, float* x, const float* y, int64_t n, attn_error* err) {
    return on(s, err, [=] {
      for (int64_t i = 0; i < n; ++i) x[i] += y[i];
    });
  };
  t.multiply = [](DeviceHandle*, uintptr_t s, float* x, const float* y, int64_t n, attn_error* err) {
    return on(s, err, [=] {
      for (int64_t i = 0; i < n; ++i) x[i] *= y[i];
    });
  };
  t.scale = [](DeviceHandle*, uintptr_t s, float* x, float by, const float* bias, int64_t rows, int64_t width,
               attn_error* err) {
    return on(s, err, [=] {
      for (int64_t i = 0; i < rows * width; ++i) x[i] = by * x[i] + (bias ? bias[i % width] : 0);
    });
  };
  t.normalise_heads = [](DeviceHandle*, uintptr_t s, float* o, int64_t rows, int64_t heads, int64_t width,
                         attn_error* err) {
    return on(s, err, [=] {
      for (int64_t r = 0; r < rows * heads; ++r) {
        double squares = 0;
        for (int64_t i = 0; i < width; ++i) squares += o[r * width + i] * o[r * width + i];
        const double inverse = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
        for (int64_t i = 0; i < width; ++i) o[r * width + i] = static_cast<float>(o[r * width + i] * inverse);
      }
    });
  };
  t.turn = [](DeviceHandle*, uintptr_t s, const DeviceRotary* layer, float* x, const int32_t* first, int64_t batch,
              int64_t length, int64_t heads, int64_t width, attn_error* err) {
    return on(s, err, [=, l = *layer] { run_turn(l, x, first, batch, length, heads, width); });
  };
  t.repeat_heads = [](DeviceHandle*, uintptr_t s, const float* from, float* to, int64_t rows, int64_t kv_heads,
                      int64_t heads, int64_t width, attn_error* err) {
    return on(s, err, [=] {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < heads; ++h)
          std::copy_n(from + (r * kv_heads + h / (heads / kv_heads)) * width, width, to + (r * heads + h) * width);
    });
  };
  t.best = [](DeviceHandle*, uintptr_t s, const float* scores, int64_t rows, int64_t outputs, int32_t* best,
              attn_error* err) {
    return on(s, err, [=] {
      for (int64_t r = 0; r < rows; ++r) {
        const float *row = scores + r * outputs, *end = row + outputs;
        const bool broken = std::any_of(row, end, [](float x) { return x != x; });
        best[r] = broken ? -1 : static_cast<int32_t>(std::max_element(row, end) - row);
      }
    });
  };
  t.top = [](DeviceHandle*, uintptr_t s, const float* scores, int64_t rows, int64_t outputs, int64_t count,
             int32_t* ids, float* top, float* norms,
             attn_error* err) { return on(s, err, [=] { run_top(scores, rows, outputs, count, ids, top, norms); }); };
  return t;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const DeviceTable* attnkit_device_table() {
  static const DeviceTable table = make();
  return &table;
}
