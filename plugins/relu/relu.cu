// relu on CUDA: the mathematics of relu.cpp on a stream, f32, exact rather than fast.
//
// One block per batch row and head; thread e owns column e of S, and S lives in the state row (or, without state, in
// scratch), so a token is one pass over D features by E threads and needs no reduction but the denominator's.
#include <cuda_runtime.h>

#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/guard.hpp>

namespace {

// What the kernel reads on the device, by value; the arrays are device memory.
struct Work {
  attn_run run;
  attnkit::Qkv<> x;
  attnkit::Widths width;
  float* scratch;  // S and z of every block, when there is no state
  float scale, eps;
  int guard;
  bool causal;
};

enum { kNone, kAdd, kClamp };
constexpr unsigned kThreads = 128;

__device__ float relu(float x) { return x < 0 ? 0 : x; }  // keeps NaN

__device__ float guarded(float x, int guard, float eps) {
  if (guard == kNone) return x;
  if (guard == kAdd) return x + eps;
  return x < eps ? eps : x;
}

// S += relu(k) v^T, z += relu(k); thread e owns column e of S, thread f feature f of z.
__device__ void append(float* s, float* z, const float* k, const float* v, const Work& w) {
  for (int64_t e = threadIdx.x; e < w.width.e; e += blockDim.x)
    for (int64_t f = 0; f < w.width.d; ++f) s[f * w.width.e + e] += relu(k[f]) * v[e];
  for (int64_t f = threadIdx.x; f < w.width.d; f += blockDim.x) z[f] += relu(k[f]);
}

// o = relu(scale q)^T S / g(relu(scale q)^T z), every thread with the whole denominator in one fixed order.
__device__ void read(const float* s, const float* z, const float* q, float* o, const Work& w) {
  __syncthreads();  // z is written by other threads
  float den = 0;
  for (int64_t f = 0; f < w.width.d; ++f) den += relu(q[f] * w.scale) * z[f];
  den = guarded(den, w.guard, w.eps);
  for (int64_t e = threadIdx.x; e < w.width.e; e += blockDim.x) {
    float sum = 0;
    for (int64_t f = 0; f < w.width.d; ++f) sum += relu(q[f] * w.scale) * s[f * w.width.e + e];
    o[e] = sum / den;
  }
  __syncthreads();  // before the next append changes z
}

// Internal linkage: two plugins in one process must not see each other's kernels.
static __global__ void __launch_bounds__(kThreads) relu_kernel(Work w) {
  const attn_run& run = w.run;
  const int64_t item = blockIdx.x, b = item / w.width.heads, h = item % w.width.heads;
  const int64_t sums = w.width.d * w.width.e, head_floats = sums + w.width.d;
  float* s = w.scratch + item * head_floats;
  if (run.state) {
    auto* row = static_cast<char*>(run.state) + (run.slots ? run.slots[b] : b) * run.state_stride;
    s = reinterpret_cast<float*>(row) + h * head_floats;
  } else {
    for (int64_t i = threadIdx.x; i < head_floats; i += blockDim.x) s[i] = 0;
    __syncthreads();
  }
  float* z = s + sums;
  const int64_t queries = run.q_len ? run.q_len[b] : run.queries, fresh = run.k_len ? run.k_len[b] : run.keys;
  const int64_t past = run.k_pos ? run.k_pos[b] : 0, q_pos = run.q_pos ? run.q_pos[b] : 0, all = past + fresh;
  const auto at = [b, h](const auto& x, int64_t i) { return x.data + b * x.batch + h * x.head + i * x.next; };
  int64_t appended = 0;
  for (int64_t i = 0; i < run.queries; ++i) {
    int64_t seen = all;
    if (run.visible)
      seen = min(all, static_cast<int64_t>(run.visible[b * run.queries + i]));
    else if (w.causal)
      seen = min(all, q_pos + i + 1);
    float* o = at(w.x.o, i);
    if (i >= queries || seen <= 0) {
      for (int64_t e = threadIdx.x; e < w.width.e; e += blockDim.x) o[e] = 0;
      continue;
    }
    for (; past + appended < seen; ++appended) append(s, z, at(w.x.k, appended), at(w.x.v, appended), w);
    read(s, z, at(w.x.q, i), o, w);
  }
  if (run.state)
    for (; appended < fresh; ++appended) append(s, z, at(w.x.k, appended), at(w.x.v, appended), w);
}

struct Relu {
  static constexpr attnkit::About about{.name = "relu",
                                        .summary = "linear attention with ReLU features: constant state, no positions",
                                        .citation = "Agostinelli and Chen, Modular Linearized Attention, ECML 2023",
                                        .state_revision = "1",
                                        .device_type = 2};
  struct Plan {};

  static attnkit::Options options() {
    return {attnkit::Guard::option("clamp"), attnkit::Guard::eps_option(1e-6), attnkit::scale_option()};
  }

  Relu(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        w(b),
        guard(attnkit::Guard::from(values)),
        scale(static_cast<float>(attnkit::scale_from(values, w.d))) {
    io = ports.qkv(w, "weighted mean of the values");
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    attnkit::check_sight(block, r);
    const int64_t items = r.batch * w.heads, head = w.d * (w.e + 1);
    info.state(r, w.heads * head);
    info.scratch_bytes = r.streams() ? 0 : attnkit::aligned(attnkit::float_bytes(items * head));
    info.flops = static_cast<uint64_t>(items * 2 * head * (r.queries + r.keys));
    return {};
  }

  void run(const Plan&, const attn_run& r) const {
    if (r.batch == 0 || (r.queries == 0 && r.keys == 0)) return;
    const Work work{
        r,          {r, io},          w, static_cast<float*>(r.exec->scratch), scale, static_cast<float>(guard.eps),
        guard.kind, block.causal != 0};
    attnkit::cuda::launch("relu", relu_kernel, {dim3(static_cast<unsigned>(r.batch * w.heads)), kThreads}, *r.exec,
                          work);
  }

  attn_block block;
  attnkit::Widths w;
  attnkit::Guard guard;
  float scale;
  attnkit::QkvPorts io;
};

}  // namespace

ATTNKIT_PLUGIN(Relu)
