// Times the CUDA variants of ./plugins on the current device and prints a table: medians by CUDA's events, each beside
// the measured bandwidth of a copy.
//
//   attnkit_gpu_bench [--device|--quick]      --device: says which one, and ends; 77 where there is none.  --quick: a
//                                             minute's choice of the sizes
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <attnkit/plugin.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <stdexcept>

namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(attnkit::say(what, ": ", cudaGetErrorString(error)));
}

class Memory {
 public:
  explicit Memory(uint64_t bytes) {
    if (bytes) check(cudaMalloc(&data_, bytes), "cudaMalloc");
  }
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  ~Memory() { cudaFree(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Median milliseconds of what `enqueue` puts on the stream, of as many runs between two events as take a millisecond,
// up to 20, so that a short one's time is not that of its launch.
double median(cudaStream_t stream, const std::function<void()>& enqueue) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> all;
  float total = 0;
  int runs = 1;
  for (int i = -2; i < 50 && (i < 3 || total < 100); ++i) {
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    for (int n = 0; n < runs; ++n) enqueue();
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end), "a run");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (i >= 0) all.push_back(ms / static_cast<float>(runs));
    if (i == -1) runs = static_cast<int>(std::clamp(std::ceil(1 / ms), 1.0f, 20.0f));
    total += ms;
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(all.begin(), all.begin() + static_cast<int64_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

struct Type {
  const char* name;
  uint8_t code, bits;
};
constexpr Type kTypes[] = {{"f32", 2, 32}, {"f16", 2, 16}, {"bf16", 4, 16}};

// past 0: a whole sequence, causal where the mechanism is, or its gradient; otherwise the next token of each row.
struct Case {
  int64_t batch, heads, d, rows, past;
  bool trains = false;
};

class Bench {
 public:
  explicit Bench(const attn_plugin& plugin, cudaStream_t stream, double bandwidth)
      : plugin_(plugin), stream_(stream), bandwidth_(bandwidth) {}

  void run(const Case& c, const Type& type) const {
    attn_error error{};
    error.struct_size = sizeof error;
    for (const bool causal : {true, false})
      if (const Mechanism it(plugin_, c, causal, error); it.code == ATTN_OK) {
        if (run(c, type, causal, it, error)) return;
      } else if (it.code != ATTN_UNSUPPORTED && it.code != ATTN_INVALID) {
        throw std::runtime_error(error.message);
      }
    std::fprintf(stderr, "%s %s d %lld, %lld keys: %s\n", plugin_.name, type.name, static_cast<long long>(c.d),
                 static_cast<long long>(c.past + c.rows), error.message);
  }

 private:
  struct Mechanism {
    Mechanism(const attn_plugin& plugin, const Case& c, bool causal, attn_error& error) : plugin(plugin) {
      attn_block block{};
      block.struct_size = sizeof block;
      block.role = causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF;
      block.causal = causal;
      block.heads = static_cast<uint32_t>(c.heads);
      block.d_model = static_cast<int32_t>(c.heads * c.d);
      block.head_width = static_cast<int32_t>(c.d);
      std::vector<attn_value> values;
      for (uint32_t i = 0; i < plugin.n_options; ++i) {
        values.push_back(plugin.options[i]->fallback);
        const std::string name = plugin.options[i]->name;
        if (name == "n_max" || (name == "length" && values.back().i)) values.back().i = c.past + c.rows;
      }
      code = plugin.create(&block, values.data(), &mech, &ports, &n, &error);
    }
    Mechanism(const Mechanism&) = delete;
    ~Mechanism() { plugin.destroy(mech); }
    const attn_plugin& plugin;
    attn_mech* mech = nullptr;
    const attn_port* const* ports = nullptr;
    uint32_t n = 0;
    int32_t code = ATTN_OK;
  };

  // False where the mechanism refuses it.
  bool run(const Case& c, const Type& type, bool causal, const Mechanism& it, attn_error& error) const {
    const auto [mech, ports, n] = std::tuple(it.mech, it.ports, it.n);
    attn_request request{};
    request.struct_size = sizeof request;
    request.flags = ATTN_KNOWS_Q_TOTAL | (c.past ? ATTN_STREAM : 0u) | (c.trains ? ATTN_TRAIN : 0u);
    request.device_type = 2;
    request.dtype_code = type.code;
    request.dtype_bits = type.bits;
    request.dtype_lanes = 1;
    request.workers = 1;
    request.batch = c.batch;
    request.queries = request.keys = c.rows;
    request.past = c.past;
    attn_info info{};
    info.struct_size = sizeof info;
    attn_plan* plan = nullptr;
    if (const int32_t code = plugin_.plan(mech, &request, &info, &plan, &error)) {
      if (code != ATTN_UNSUPPORTED && code != ATTN_INVALID) throw std::runtime_error(error.message);
      return false;
    }
    const std::unique_ptr<attn_plan, void (*)(attn_plan*)> plan_owner(plan, plugin_.plan_free);
    size_t free = 0, all = 0;
    check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
    const double state = static_cast<double>(info.state_bytes) * static_cast<double>(c.batch);
    const uint64_t moved = (info.bytes_read + info.bytes_written) * (c.trains ? 2 : 1);
    const uint64_t scratch = std::max(info.scratch_bytes, info.backward_scratch_bytes);
    if (static_cast<double>(moved + scratch + info.saved_bytes) + state > 0.8 * static_cast<double>(free) ||
        static_cast<double>(info.flops) > 1e13)
      return true;

    std::vector<Memory> memory;
    std::vector<attn_tensor> tensors;
    for (uint32_t i = 0; i < n; ++i) tensors.push_back(tensor(mech, i, *ports[i], request, memory));
    const std::vector<int32_t> positions(static_cast<size_t>(c.batch), static_cast<int32_t>(c.past));
    const std::vector<double> totals(static_cast<size_t>(c.batch), static_cast<double>(c.past + c.rows));
    attn_exec exec{};
    exec.struct_size = sizeof exec;
    exec.workers = 1;
    exec.scratch = memory.emplace_back(scratch).data();
    exec.scratch_bytes = scratch;
    exec.stream = reinterpret_cast<uintptr_t>(stream_);
    attn_run run{};
    run.struct_size = sizeof run;
    run.exec = &exec;
    run.batch = c.batch;
    run.queries = run.keys = c.rows;
    run.ports = tensors.data();
    run.q_total = copy(totals, memory);
    if (c.past) {
      run.q_pos = run.k_pos = copy(positions, memory);
      run.state_stride = info.state_bytes;
      run.state = memory.emplace_back(info.state_bytes * static_cast<uint64_t>(c.batch)).data();
      check(cudaMemset(run.state, 0, info.state_bytes * static_cast<uint64_t>(c.batch)), "cudaMemset");
    }
    run.saved = memory.emplace_back(info.saved_bytes).data();
    const auto forward = [&] {
      if (plugin_.run(plan, &run, &error)) throw std::runtime_error(error.message);
    };
    std::vector<attn_tensor> grads;
    for (uint32_t i = 0; c.trains && i < n; ++i) grads.push_back(tensor(mech, i, *ports[i], request, memory));
    const attn_grad grad{sizeof grad, 0, &run, grads.data()};
    const auto backward = [&] {
      if (plugin_.backward(plan, &grad, &error)) throw std::runtime_error(error.message);
    };
    if (c.trains) forward();
    const double ms = c.trains ? median(stream_, backward) : median(stream_, forward);
    const double bytes = static_cast<double>(moved);
    const std::string rate = c.trains ? "" : attnkit::say(static_cast<double>(info.flops) / ms * 1e-9);
    std::printf("| %s | %s | %s | %lld | %lld | %lld | %.3f | %.0f %% | %s |\n", plugin_.name, type.name,
                c.past     ? "one token"
                : c.trains ? "gradient"
                : causal   ? "whole, causal"
                           : "whole, full",
                static_cast<long long>(c.batch * c.heads), static_cast<long long>(c.d),
                static_cast<long long>(c.past + c.rows), ms, 100 * bytes / (ms * 1e-3) / bandwidth_, rate.c_str());
    std::fflush(stdout);
    return true;
  }

  template <class T>
  static T* copy(const std::vector<T>& from, std::vector<Memory>& memory) {
    void* to = memory.emplace_back(from.size() * sizeof(T)).data();
    check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    return static_cast<T*>(to);
  }

  attn_tensor tensor(const attn_mech* mech, uint32_t index, const attn_port& port, const attn_request& r,
                     std::vector<Memory>& memory) const {
    attn_tensor t{};
    t.ndim = port.ndim;
    t.dtype_lanes = 1;
    t.device_type = 2;
    t.dtype_code = port.dtype_bits ? port.dtype_code : r.dtype_code;
    t.dtype_bits = port.dtype_bits ? port.dtype_bits : r.dtype_bits;
    std::copy(port.shape, port.shape + port.ndim, t.shape);
    int64_t count = 1;
    const bool stored = port.kind == ATTN_LEARNED || port.kind == ATTN_TABLE;
    if (!stored) t.shape[0] = r.batch;
    if (port.kind <= ATTN_OUTPUT) {
      t.shape[2] = port.kind == ATTN_KEY ? r.keys : r.queries;
      t.stride[3] = 1;
      t.stride[1] = t.shape[3];
      t.stride[2] = t.shape[1] * t.shape[3];
      t.stride[0] = t.shape[2] * t.stride[2];
      count = t.shape[0] * t.stride[0];
    } else {
      for (int d = static_cast<int>(port.ndim) - 1; d >= 0; count *= t.shape[d--]) t.stride[d] = count;
    }
    const auto bytes = static_cast<uint64_t>(count) * (t.dtype_bits / 8);
    t.data = memory.emplace_back(bytes).data();
    if (!stored) {
      fill(static_cast<char*>(t.data), bytes, t);
      return t;
    }
    std::vector<char> host(bytes);
    attn_tensor here = t;
    here.device_type = 1;
    here.data = host.data();
    attn_error error{};
    error.struct_size = sizeof error;
    if (plugin_.fill(mech, index, 1, &here, &error)) throw std::runtime_error(error.message);
    check(cudaMemcpy(t.data, host.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return t;
  }

  // Numbers between -1 and 1, the same ones again and again.
  static void fill(char* to, uint64_t bytes, const attn_tensor& t) {
    std::vector<uint16_t> some(1 << 20);
    uint64_t state = 1;
    for (size_t i = 0; i < some.size(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto random = static_cast<uint16_t>(state >> 48);
      // Of 16 bits: sign, an exponent just below that of 1, fraction.  Of 32: the same in the upper half.
      if (t.dtype_bits == 16 && t.dtype_code == 2)
        some[i] = static_cast<uint16_t>((random & 0x83FF) | 0x3800);
      else
        some[i] = static_cast<uint16_t>(t.dtype_bits == 32 && i % 2 == 0 ? random : ((random & 0x807F) | 0x3F00));
    }
    uint64_t full = std::min<uint64_t>(some.size() * 2, bytes);
    check(cudaMemcpy(to, some.data(), full, cudaMemcpyHostToDevice), "cudaMemcpy");
    for (; full < bytes; full = std::min(2 * full, bytes))
      check(cudaMemcpy(to + full, to, std::min(full, bytes - full), cudaMemcpyDeviceToDevice), "cudaMemcpy");
  }

  const attn_plugin& plugin_;
  cudaStream_t stream_;
  double bandwidth_;
};

// Bytes per second, read and written.
double copy_bandwidth(cudaStream_t stream) {
  constexpr uint64_t kBytes = uint64_t{1} << 30;
  const Memory from(kBytes), to(kBytes);
  const double ms = median(stream, [&] {
    check(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  });
  return 2.0 * static_cast<double>(kBytes) / (ms * 1e-3);
}

const attn_plugin& load(const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  const auto main = reinterpret_cast<attn_plugin_main_fn>(dlsym(library, "attn_plugin_main_v1"));
  const attn_host host{sizeof host, ATTN_ABI_MINOR, 0, 0};
  const attn_plugin* plugin = nullptr;
  attn_error error{};
  error.struct_size = sizeof error;
  if (!main || main(&host, &plugin, &error)) throw std::runtime_error(file + ": " + error.message);
  return *plugin;
}

void run_all(bool quick) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const double bandwidth = copy_bandwidth(stream);
  std::printf("Copies: %.0f GB/s read and written.\n\n", bandwidth * 1e-9);
  std::printf(
      "| mechanism | type | call | heads x batch | d | keys | ms | of copies | TFLOP/s "
      "|\n|---|---|---|---|---|---|---|---|---|\n");
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("plugins"))
    if (entry.path().string().ends_with("-cuda.so")) files.push_back("./" + entry.path().string());
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    const Bench bench(load(file), stream, bandwidth);
    for (const Type& type : kTypes) {
      if (quick) {
        for (const Case& c : std::vector<Case>{{32, 16, 64, 4096, 0},
                                               {32, 16, 64, 4096, 0, true},
                                               {32, 16, 128, 4096, 0},
                                               {1, 8, 64, 65536, 0},
                                               {1024, 8, 64, 1, 1023},
                                               {1, 8, 64, 1, 65535}})
          bench.run(c, type);
        continue;
      }
      for (const int64_t batch : {4, 32})
        for (const int64_t d : {64, 128})
          for (const int64_t rows : {512, 4096, 16384, 65536})
            for (const bool trains : {false, true}) bench.run({batch, 16, d, rows, 0, trains}, type);
      for (const int64_t sessions : {16, 1024})
        for (const int64_t d : {64, 128}) bench.run({sessions, 8, d, 1, 1023}, type);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    int devices = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0) {
      std::fprintf(stderr, "there is no CUDA device here: %s\n",
                   error == cudaSuccess ? "the driver sees none" : cudaGetErrorString(error));
      return 77;
    }
    cudaDeviceProp device{};
    int driver = 0;
    check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    std::printf("%s, sm_%d%d, %d multiprocessors, %.0f GB, driver for CUDA %d.%d\n", device.name, device.major,
                device.minor, device.multiProcessorCount, static_cast<double>(device.totalGlobalMem) * 1e-9,
                driver / 1000, driver / 10 % 100);
    const std::string option = argc < 2 ? "" : argv[1];
    if (option != "--device") run_all(option == "--quick");
    return 0;
  } catch (const std::exception& failed) {
    std::fprintf(stderr, "%s\n", failed.what());
    return 1;
  }
}
