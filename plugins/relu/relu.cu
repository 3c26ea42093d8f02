// relu on CUDA: the mathematics of relu.cpp on a stream, f32, exact rather than fast.
//
// One block per batch row and head; thread e owns column e of S, and S lives in the state row (or, without state, in
// scratch), so a token is one pass over D features by E threads and needs no reduction but the denominator's.
#include <cuda_runtime.h>

#include <attnkit/kernels/guard.hpp>

namespace {

// What the kernel reads on the device, by value; the arrays are device memory.
struct Rows {
  float* data;
  int64_t batch, head, next;
};

struct Work {
  Rows q, k, v, o;
  int64_t batch, heads, d, e, queries, keys;
  const int32_t *q_len, *k_len, *q_pos, *k_pos, *visible, *slots;
  char* state;
  int64_t state_stride;
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
  for (int64_t e = threadIdx.x; e < w.e; e += blockDim.x)
    for (int64_t f = 0; f < w.d; ++f) s[f * w.e + e] += relu(k[f]) * v[e];
  for (int64_t f = threadIdx.x; f < w.d; f += blockDim.x) z[f] += relu(k[f]);
}

// o = relu(scale q)^T S / g(relu(scale q)^T z), every thread with the whole denominator in one fixed order.
__device__ void read(const float* s, const float* z, const float* q, float* o, const Work& w) {
  __syncthreads();  // z is written by other threads
  float den = 0;
  for (int64_t f = 0; f < w.d; ++f) den += relu(q[f] * w.scale) * z[f];
  den = guarded(den, w.guard, w.eps);
  for (int64_t e = threadIdx.x; e < w.e; e += blockDim.x) {
    float sum = 0;
    for (int64_t f = 0; f < w.d; ++f) sum += relu(q[f] * w.scale) * s[f * w.e + e];
    o[e] = sum / den;
  }
  __syncthreads();  // before the next append changes z
}

// Internal linkage: two plugins in one process must not see each other's kernels.
static __global__ void __launch_bounds__(kThreads) relu_kernel(Work w) {
  const int64_t item = blockIdx.x, b = item / w.heads, h = item % w.heads;
  const int64_t head_floats = w.d * (w.e + 1);
  float* s = w.scratch + item * head_floats;
  if (w.state) {
    s = reinterpret_cast<float*>(w.state + (w.slots ? w.slots[b] : b) * w.state_stride) + h * head_floats;
  } else {
    for (int64_t i = threadIdx.x; i < head_floats; i += blockDim.x) s[i] = 0;
    __syncthreads();
  }
  float* z = s + w.d * w.e;
  const int64_t queries = w.q_len ? w.q_len[b] : w.queries, fresh = w.k_len ? w.k_len[b] : w.keys;
  const int64_t past = w.k_pos ? w.k_pos[b] : 0, q_pos = w.q_pos ? w.q_pos[b] : 0, all = past + fresh;
  const auto at = [b, h](const Rows& rows, int64_t i) {
    return rows.data + b * rows.batch + h * rows.head + i * rows.next;
  };
  int64_t appended = 0;
  for (int64_t i = 0; i < w.queries; ++i) {
    int64_t seen = all;
    if (w.visible)
      seen = min(all, static_cast<int64_t>(w.visible[b * w.queries + i]));
    else if (w.causal)
      seen = min(all, q_pos + i + 1);
    float* o = at(w.o, i);
    if (i >= queries || seen <= 0) {
      for (int64_t e = threadIdx.x; e < w.e; e += blockDim.x) o[e] = 0;
      continue;
    }
    for (; past + appended < seen; ++appended) append(s, z, at(w.k, appended), at(w.v, appended), w);
    read(s, z, at(w.q, i), o, w);
  }
  if (w.state)
    for (; appended < fresh; ++appended) append(s, z, at(w.k, appended), at(w.v, appended), w);
}

Rows rows(const attn_tensor& t) { return {static_cast<float*>(t.data), t.stride[0], t.stride[1], t.stride[2]}; }

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
      : block(b), heads(b.heads), d(b.d_model / heads), e(b.head_width), guard(attnkit::Guard::from(values)) {
    scale = attnkit::scale_from(values, d);
    q = ports.query("q", d, "queries");
    k = ports.key("k", d, "keys");
    v = ports.key("v", e, "values");
    o = ports.output("o", e, "weighted mean of the values");
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    attnkit::check_sight(block, r);
    const bool stream = (r.flags & ATTN_STREAM) != 0;
    const auto items = static_cast<uint64_t>(r.batch * heads), head = static_cast<uint64_t>(d * (e + 1)) * 4;
    info.scratch_bytes = stream ? 0 : attnkit::aligned(items * head);
    info.state_bytes = stream ? attnkit::aligned(static_cast<uint64_t>(heads) * head) : 0;
    info.flops = items * static_cast<uint64_t>(2 * d * (e + 1) * (r.queries + r.keys));
    info.bytes_read = items * static_cast<uint64_t>(r.queries * d + r.keys * (d + e)) * 4 + (stream ? items * head : 0);
    info.bytes_written = items * static_cast<uint64_t>(r.queries * e) * 4 + (stream && r.keys > 0 ? items * head : 0);
    return {};
  }

  void run(const Plan&, const attn_run& r) const {
    if (r.batch == 0 || (r.queries == 0 && r.keys == 0)) return;
    const Work work{rows(r.ports[q]),
                    rows(r.ports[k]),
                    rows(r.ports[v]),
                    rows(r.ports[o]),
                    r.batch,
                    heads,
                    d,
                    e,
                    r.queries,
                    r.keys,
                    r.q_len,
                    r.k_len,
                    r.q_pos,
                    r.k_pos,
                    r.visible,
                    r.slots,
                    static_cast<char*>(r.state),
                    static_cast<int64_t>(r.state_stride),
                    static_cast<float*>(r.exec->scratch),
                    scale,
                    guard.eps,
                    guard.kind,
                    block.causal != 0};
    relu_kernel<<<static_cast<unsigned>(r.batch * heads), kThreads, 0,
                  reinterpret_cast<cudaStream_t>(r.exec->stream)>>>(work);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
      throw attnkit::Refusal(ATTN_DEVICE,
                             attnkit::say("CUDA cannot launch the relu kernel: ", cudaGetErrorString(error)));
  }

  attn_block block;
  int64_t heads, d, e;
  attnkit::Guard guard;
  float scale;
  uint32_t q, k, v, o;
};

}  // namespace

ATTNKIT_PLUGIN(Relu)
