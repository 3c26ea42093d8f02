// linformer on CUDA: the mathematics of linformer.cpp.  All products are in f32, 16 bits are widened when a row is
// loaded.
//
// Append: a block for 32 columns of Kbar and of Vbar, 32 mixtures each.  A thread adds the keys to its numbers one by
// one, so that no bit depends on how they arrive.  Attend: a block for some queries of a head, a thread for a mixture
// and then for a channel.  Prefixes, where each query may see more keys than the one before, are one block's walk over
// both.
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/cuda/tile.hpp>
#include <limits>

#include "model.hpp"

namespace {

using namespace attnkit::cuda;

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kTile = 32;  // mixtures and columns of a block that appends, keys that it loads together
constexpr int kOwn = kTile * kTile / kThreads;            // of its sums, a thread's
constexpr int kQueries = 8;                               // of a block that attends
constexpr uint64_t kTiles = 4 * kTile * (2 * kTile + 1);  // bytes of shared memory, beside what grows with the rank
constexpr float kLeast = std::numeric_limits<float>::lowest();

struct Sizes {
  int heads, d, e, rank, lanes;
  explicit Sizes(const linformer::Shape& s)
      : heads(static_cast<int>(s.heads)),
        d(static_cast<int>(s.d)),
        e(static_cast<int>(s.e)),
        rank(static_cast<int>(s.rank)),
        lanes(static_cast<int>(s.lanes())) {}
  __host__ __device__ int64_t head() const { return static_cast<int64_t>(d) * lanes + static_cast<int64_t>(rank) * e; }
  // Of queries that are attended together; 0: not even one fits.
  uint64_t bytes(int queries) const { return static_cast<uint64_t>(queries * (rank + d) + 2 * kWarps * queries) * 4; }
  int together() const {
    for (int n = kQueries; n > 0; n /= 2)
      if (kTiles + bytes(n) <= static_cast<uint64_t>(most_shared())) return n;
    return 0;
  }
  // Tiles of the sums of a head: those of Kbar, then those of Vbar.
  __host__ __device__ int rows() const { return (rank + kTile - 1) / kTile; }
  __host__ __device__ int tiles() const { return rows() * ((d + kTile - 1) / kTile + (e + kTile - 1) / kTile); }
};

template <class T>
struct Work {
  Sizes sizes;
  Rows<const T> q, k, v;
  Rows<const float> keys_by, values_by;  // E and F
  Rows<T> o;
  Lengths lengths;
  States states;
  float* scratch;  // sums of every head where there is no state
  float scale;
  int together, tiles;
  __device__ float* head(int64_t b, int h) const {
    float* row = states ? states.row(b) : scratch + b * sizes.heads * sizes.head();
    return row + h * sizes.head();
  }
};

// Adds keys [from, to) of this run to one tile of the sums of a head; a whole block.
template <class T>
__device__ void append(const Work<T>& w, int64_t b, int h, int64_t past, int64_t from, int64_t to, int tile) {
  ATTNKIT_SHARED(float, columns, kTile*(kTile + 1));  // of E or F: [mixture][key]
  ATTNKIT_SHARED(float, rows, kTile* kTile);          // of K or V: [key][column]
  const Sizes& s = w.sizes;
  const int first_row = tile % s.rows() * kTile, of = tile / s.rows(), of_keys = (s.d + kTile - 1) / kTile;
  const bool is_key = of < of_keys;
  const int first_column = (is_key ? of : of - of_keys) * kTile, width = is_key ? s.d : s.e;
  const int column = lane();
  const bool counts = first_column + column < width;
  float* const head = w.head(b, h);
  const auto place = [&](int own) -> float& {
    const int t = first_row + warp() + own * kWarps, c = first_column + column;
    return is_key ? head[static_cast<int64_t>(c) * s.lanes + t]
                  : head[static_cast<int64_t>(s.d) * s.lanes + static_cast<int64_t>(t) * s.e + c];
  };
  const auto is_mine = [&](int own) { return counts && first_row + warp() + own * kWarps < s.rank; };
  float sums[kOwn];
#pragma unroll
  for (int own = 0; own < kOwn; ++own) sums[own] = is_mine(own) ? place(own) : 0.0f;
  for (int64_t begin = from; begin < to; begin += kTile) {
    const int n = static_cast<int>(to - begin < kTile ? to - begin : kTile);
    for (int t = warp(); t < kTile; t += kWarps) {
      const bool known = first_row + t < s.rank && lane() < n;
      const Rows<const float>& by = is_key ? w.keys_by : w.values_by;
      columns[t * (kTile + 1) + lane()] = known ? by.at(0, h, first_row + t)[past + begin + lane()] : 0.0f;
    }
    for (int j = warp(); j < kTile; j += kWarps) {
      const Rows<const T>& x = is_key ? w.k : w.v;
      rows[j * kTile + lane()] = j < n && counts ? widened(x.at(b, h, begin + j)[first_column + column]) : 0.0f;
    }
    __syncthreads();
    for (int j = 0; j < n; ++j) {
      const float x = rows[j * kTile + column];
#pragma unroll
      for (int own = 0; own < kOwn; ++own)
        sums[own] = fused(columns[(warp() + own * kWarps) * (kTile + 1) + j], x, sums[own]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int own = 0; own < kOwn; ++own)
    if (is_mine(own)) place(own) = sums[own];
}

// Attends queries [from, from + n), n <= kMost, which see the same keys, at least one; a whole block.
template <int kMost, class T>
__device__ void attend(const Work<T>& w, int64_t b, int h, int64_t from, int n) {
  const Sizes& s = w.sizes;
  SharedParts parts;
  const Shared<float> weights = parts.take<float>(w.together * s.rank), q = parts.take<float>(w.together * s.d),
                      most = parts.take<float>(w.together * kWarps), total = parts.take<float>(w.together * kWarps);
  const float *const keys = w.head(b, h), *const values = keys + static_cast<int64_t>(s.d) * s.lanes;
  for (int unit = static_cast<int>(threadIdx.x); unit < n * s.d; unit += kThreads)
    q[unit] = widened(w.q.at(b, h, from + unit / s.d)[unit % s.d]) * w.scale;
  __syncthreads();
  float largest[kMost], sum[kMost];
#pragma unroll
  for (int r = 0; r < kMost; ++r) largest[r] = kLeast;
  for (int t = static_cast<int>(threadIdx.x); t < s.rank; t += kThreads) {
    float score[kMost] = {};
    for (int c = 0; c < s.d; ++c) {
      const float k = keys[static_cast<int64_t>(c) * s.lanes + t];
#pragma unroll
      for (int r = 0; r < kMost; ++r)
        if (r < n) score[r] = fused(q[r * s.d + c], k, score[r]);
    }
#pragma unroll
    for (int r = 0; r < kMost; ++r)
      if (r < n) {
        weights[r * s.rank + t] = score[r];
        largest[r] = larger(largest[r], score[r]);
      }
  }
#pragma unroll
  for (int r = 0; r < kMost; ++r) {
    if (r >= n) continue;
    for (int bits = 16; bits > 0; bits /= 2) largest[r] = larger(largest[r], __shfl_xor_sync(kAll, largest[r], bits));
    if (lane() == 0) most[r * kWarps + warp()] = largest[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kMost; ++r) {
    if (r >= n) continue;
    float top = kLeast;
    for (int i = 0; i < kWarps; ++i) top = larger(top, most[r * kWarps + i]);
    sum[r] = 0;
    for (int t = static_cast<int>(threadIdx.x); t < s.rank; t += kThreads) {
      const float p = exponential(weights[r * s.rank + t] - top);
      weights[r * s.rank + t] = p;
      sum[r] += p;
    }
    sum[r] = sum_of_warp(sum[r]);
    if (lane() == 0) total[r * kWarps + warp()] = sum[r];
  }
  __syncthreads();
  for (int unit = static_cast<int>(threadIdx.x); unit < n * s.e; unit += kThreads) {
    const int r = unit / s.e, c = unit % s.e;
    float mixed = 0, weight = 0;
    for (int t = 0; t < s.rank; ++t)
      mixed = fused(weights[r * s.rank + t], values[static_cast<int64_t>(t) * s.e + c], mixed);
    for (int i = 0; i < kWarps; ++i) weight += total[r * kWarps + i];
    w.o.at(b, h, from + r)[c] = narrowed<T>(quotient(mixed, weight));
  }
  __syncthreads();
}

template <class T>
__device__ void clear(const Work<T>& w, int64_t b, int h, int64_t from, int64_t to) {
  for (int64_t unit = from * w.sizes.e + threadIdx.x; unit < to * w.sizes.e; unit += kThreads)
    w.o.at(b, h, unit / w.sizes.e)[unit % w.sizes.e] = narrowed<T>(0);
}

template <class T>
static __global__ void __launch_bounds__(kThreads) append_kernel(const Work<T> w) {
  const int pair = static_cast<int>(blockIdx.x) / w.sizes.tiles(),
            tile = static_cast<int>(blockIdx.x) % w.sizes.tiles();
  const int64_t b = pair / w.sizes.heads;
  const Sight sight(w.lengths, b);
  append(w, b, pair % w.sizes.heads, sight.past, 0, sight.fresh, tile);
}

template <class T>
static __global__ void __launch_bounds__(kThreads) attend_kernel(const Work<T> w) {
  const int pair = static_cast<int>(blockIdx.x) / w.tiles, tile = static_cast<int>(blockIdx.x) % w.tiles;
  const int64_t b = pair / w.sizes.heads, from = static_cast<int64_t>(tile) * w.together;
  const int h = pair % w.sizes.heads;
  const Sight sight(w.lengths, b);
  const int64_t left = sight.past + sight.fresh > 0 ? sight.queries - from : 0;
  const int n = static_cast<int>(left < 0 ? 0 : left < w.together ? left : w.together);
  if (n > 0) attend<kQueries>(w, b, h, from, n);
  const int64_t end = from + w.together;
  clear(w, b, h, from + n, end < w.lengths.queries ? end : w.lengths.queries);
}

template <class T>
static __global__ void __launch_bounds__(kThreads, 1) prefix_kernel(const Work<T> w) {
  const int64_t b = static_cast<int64_t>(blockIdx.x) / w.sizes.heads;
  const int h = static_cast<int>(blockIdx.x) % w.sizes.heads;
  const Sight sight(w.lengths, b);
  int64_t known = 0;
  for (int64_t i = 0; i < sight.queries; ++i) {
    const int64_t seen = sight.seen(i);
    for (int tile = 0; seen > known && tile < w.sizes.tiles(); ++tile) append(w, b, h, 0, known, seen, tile);
    if (seen > known) known = seen;
    __syncthreads();
    if (known > 0)
      attend<1>(w, b, h, i, 1);
    else
      clear(w, b, h, i, i + 1);
  }
  clear(w, b, h, sight.queries, w.lengths.queries);
}

struct Linformer : linformer::Model {
  static constexpr attnkit::About about{Model::about.name,
                                        Model::about.summary,
                                        Model::about.citation,
                                        Model::about.state_revision,
                                        kCudaDevice,
                                        0,
                                        true};
  using Model::Model;
  struct Plan {
    int together;
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    count(r, info);
    const Sizes s(shape);
    if (s.together() == 0)
      throw attnkit::unsupported("the scores of one query over rank = ", shape.rank, " mixtures take ", s.bytes(1),
                                 " bytes of a block's shared memory, which is ", most_shared(), " bytes: lower rank");
    if (!r.streams()) info.scratch_bytes = attnkit::aligned(sums_bytes(r.batch));
    return {s.together()};
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (r.batch == 0) return;
    with_type(io.o.of(r.ports), [&](auto type) { run_in<decltype(type)>(plan, r); });
  }

 private:
  uint64_t sums_bytes(int64_t batch) const {
    return static_cast<uint64_t>(batch * shape.heads * shape.head_floats()) * sizeof(float);
  }

  template <class T>
  void run_in(const Plan& plan, const attn_run& r) const {
    const auto rows = [&](attnkit::Port port) { return attnkit::View<const T>(r, port); };
    const auto matrix = [&](attnkit::Port port) { return Rows<const float>(attnkit::View<const float>(r, port)); };
    const int64_t tiles = std::max<int64_t>(1, (r.queries + plan.together - 1) / plan.together);
    const Work<T> w{Sizes(shape),
                    rows(io.q),
                    rows(io.k),
                    rows(io.v),
                    matrix(e),
                    matrix(f ? f : e),
                    attnkit::View<T>(r, io.o),
                    Lengths(r, false),
                    States(r),
                    static_cast<float*>(r.exec->scratch),
                    static_cast<float>(1 / std::sqrt(static_cast<double>(shape.d))),
                    plan.together,
                    static_cast<int>(tiles)};
    const int64_t pairs = r.batch * shape.heads;
    const auto start = [&](auto* kernel, int64_t blocks, uint64_t bytes) {
      launch(about.name, kernel, {dim3(static_cast<unsigned>(blocks)), kThreads, bytes}, *r.exec, w);
    };
    if (!r.state) {
      const auto stream = reinterpret_cast<cudaStream_t>(r.exec->stream);
      const cudaError_t error = cudaMemsetAsync(r.exec->scratch, 0, sums_bytes(r.batch), stream);
      if (error != cudaSuccess)
        throw attnkit::Refusal(ATTN_DEVICE, attnkit::say("CUDA cannot clear memory: ", cudaGetErrorString(error)));
    }
    if (r.visible) return start(prefix_kernel<T>, pairs, w.sizes.bytes(plan.together));
    if (r.keys > 0) start(append_kernel<T>, pairs * w.sizes.tiles(), 0);
    if (r.queries > 0) start(attend_kernel<T>, pairs * w.tiles, w.sizes.bytes(plan.together));
  }
};

}  // namespace

ATTNKIT_PLUGIN(Linformer)
