// linformer's run on CUDA.  All products are in f32, in f64 where the tensors are; 16 bits are widened when a row is
// loaded.
//
// Append: a block for 32 columns of Kbar and of Vbar, 32 mixtures each.  A thread adds the keys to its numbers one by
// one, so that no bit depends on how they arrive.  Attend: a block for some queries of a head, a thread for a mixture
// and then for a channel.  Prefixes, where each query may see more keys than the one before, are one block's walk over
// both.
#pragma once
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/tile.hpp>
#include <limits>

#include "../shape.hpp"

namespace linformer::cuda {

using namespace attnkit::cuda;

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kTile = 32;                       // rows, columns and depth of a block's product
constexpr int kRow = kTile + 1;                 // 1: neighbours lie in different banks
constexpr int kOwn = kTile * kTile / kThreads;  // of its sums, a thread's
constexpr int kQueries = 8;                     // of a block that attends
template <class Real>
constexpr Real kLeast = std::numeric_limits<Real>::lowest();

struct Sizes {
  int heads, d, e, rank, lanes;
  explicit Sizes(const Shape& s)
      : heads(static_cast<int>(s.heads)),
        d(static_cast<int>(s.d)),
        e(static_cast<int>(s.e)),
        rank(static_cast<int>(s.rank)),
        lanes(static_cast<int>(s.lanes())) {}
  __host__ __device__ int64_t head() const { return static_cast<int64_t>(d) * lanes + static_cast<int64_t>(rank) * e; }
  // Of queries that are attended together; 0: not even one fits.
  template <class Real>
  uint64_t bytes(int queries) const {
    return static_cast<uint64_t>(queries * (rank + d) + 2 * kWarps * queries) * sizeof(Real);
  }
  template <class Real>
  int together() const {
    for (int n = kQueries; n > 0; n /= 2)
      if (2 * kTile * kRow * sizeof(Real) + bytes<Real>(n) <= static_cast<uint64_t>(most_shared())) return n;
    return 0;
  }
  // Tiles of the sums of a head: those of Kbar, then those of Vbar.
  __host__ __device__ int rows() const { return (rank + kTile - 1) / kTile; }
  __host__ __device__ int tiles() const { return rows() * columns(); }
  __host__ __device__ int columns() const { return (d + kTile - 1) / kTile + (e + kTile - 1) / kTile; }
};

template <class T>
struct Work {
  using Real = RealOf<T>;
  Sizes sizes;
  Rows<const T> q, k, v;
  Rows<const Real> keys_by, values_by;  // E and F
  Rows<T> o;
  Lengths lengths;
  States states;
  Real* scratch;         // sums of every head where there is no state
  Real* lse;             // log sum_t exp(s_it), [B][H][N], if it is kept
  int mixture, channel;  // from one to the next of Kbar
  Real scale;
  int together, tiles;
  __device__ Real* head(int64_t b, int h) const {
    Real* row = scratch + b * sizes.heads * sizes.head();
    if constexpr (std::is_same_v<Real, float>)
      if (states) row = states.row(b);
    return row + h * sizes.head();
  }
  __device__ Real* values(int64_t b, int h) const { return head(b, h) + static_cast<int64_t>(sizes.d) * sizes.lanes; }
};

// The columns of K, or of V, that a tile of a head's sums has.
struct Columns {
  bool of_keys;
  int first, width;
  __device__ Columns(const Sizes& s, int tile)
      : of_keys(tile < (s.d + kTile - 1) / kTile),
        first((of_keys ? tile : tile - (s.d + kTile - 1) / kTile) * kTile),
        width(of_keys ? s.d : s.e) {}
};

// Shared memory of a block for 32 x 32 numbers of each operand.
template <class Real>
struct Operands {
  Shared<Real> left, right;
};

// sums[own] += sum over k < depth of left(row, k) right(k, column), in the order of k, where row = warp() + own *
// kWarps and column = lane(); a whole block.  Both are 0 where there is nothing.  The lanes of a warp load neighbours
// in a row of `left` or else in a column, in a column of `right` or else in a row.
template <bool kLeftByRows, bool kRightByColumns, class Real, class Left, class Right>
__device__ void add_product(const Operands<Real>& to, int64_t depth, const Left& left, const Right& right,
                            Real (&sums)[kOwn]) {
  for (int64_t begin = 0; begin < depth; begin += kTile) {
    const int n = static_cast<int>(depth - begin < kTile ? depth - begin : kTile);
    for (int x = warp(); x < kTile; x += kWarps) {
      const int row = kLeftByRows ? x : lane(), of_row = kLeftByRows ? lane() : x;
      to.left[x * kRow + lane()] = of_row < n ? left(row, begin + of_row) : Real{0};
      const int column = kRightByColumns ? x : lane(), of_column = kRightByColumns ? lane() : x;
      to.right[x * kRow + lane()] = of_column < n ? right(begin + of_column, column) : Real{0};
    }
    __syncthreads();
    for (int k = 0; k < n; ++k) {
      const Real x = to.right[kRightByColumns ? lane() * kRow + k : k * kRow + lane()];
#pragma unroll
      for (int own = 0; own < kOwn; ++own) {
        const int row = warp() + own * kWarps;
        sums[own] = fused(to.left[kLeftByRows ? row * kRow + k : k * kRow + row], x, sums[own]);
      }
    }
    __syncthreads();
  }
}

// Adds keys [from, to) of this run to one tile of the sums of a head; a whole block.
template <class T>
__device__ void append(const Work<T>& w, const Operands<RealOf<T>>& operands, int64_t b, int h, int64_t past,
                       int64_t from, int64_t to, int tile) {
  using Real = RealOf<T>;
  const Sizes& s = w.sizes;
  const int first_row = tile % s.rows() * kTile;
  const Columns columns(s, tile / s.rows());
  const int column = columns.first + lane();
  const auto place = [&](int own) -> Real& {
    const int t = first_row + warp() + own * kWarps;
    return columns.of_keys
               ? w.head(b, h)[static_cast<int64_t>(column) * w.channel + static_cast<int64_t>(t) * w.mixture]
               : w.values(b, h)[static_cast<int64_t>(t) * s.e + column];
  };
  const auto is_mine = [&](int own) { return column < columns.width && first_row + warp() + own * kWarps < s.rank; };
  Real sums[kOwn];
#pragma unroll
  for (int own = 0; own < kOwn; ++own) sums[own] = is_mine(own) ? place(own) : Real{0};
  const Rows<const Real>& by = columns.of_keys ? w.keys_by : w.values_by;
  const Rows<const T>& x = columns.of_keys ? w.k : w.v;
  add_product<true, false>(
      operands, to - from,
      [&](int t, int64_t j) { return first_row + t < s.rank ? by.at(0, h, first_row + t)[past + from + j] : Real{0}; },
      [&](int64_t j, int c) {
        return columns.first + c < columns.width ? widened(x.at(b, h, from + j)[columns.first + c]) : Real{0};
      },
      sums);
#pragma unroll
  for (int own = 0; own < kOwn; ++own)
    if (is_mine(own)) place(own) = sums[own];
}

// Attends queries [from, from + n), n <= kMost, which see the same keys, at least one; a whole block.
template <int kMost, class T>
__device__ void attend(const Work<T>& w, int64_t b, int h, int64_t from, int n) {
  using Real = RealOf<T>;
  const Sizes& s = w.sizes;
  SharedParts parts;
  const Shared<Real> weights = parts.take<Real>(w.together * s.rank), q = parts.take<Real>(w.together * s.d),
                     most = parts.take<Real>(w.together * kWarps), total = parts.take<Real>(w.together * kWarps);
  const Real *const keys = w.head(b, h), *const values = w.values(b, h);
  for (int unit = static_cast<int>(threadIdx.x); unit < n * s.d; unit += kThreads)
    q[unit] = widened(w.q.at(b, h, from + unit / s.d)[unit % s.d]) * w.scale;
  __syncthreads();
  Real largest[kMost], sum[kMost];
#pragma unroll
  for (int r = 0; r < kMost; ++r) largest[r] = kLeast<Real>;
  for (int t = static_cast<int>(threadIdx.x); t < s.rank; t += kThreads) {
    Real score[kMost] = {};
    for (int c = 0; c < s.d; ++c) {
      const Real k = keys[static_cast<int64_t>(c) * s.lanes + t];
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
    Real top = kLeast<Real>;
    for (int i = 0; i < kWarps; ++i) top = larger(top, most[r * kWarps + i]);
    sum[r] = 0;
    for (int t = static_cast<int>(threadIdx.x); t < s.rank; t += kThreads) {
      const Real p = exponential(weights[r * s.rank + t] - top);
      weights[r * s.rank + t] = p;
      sum[r] += p;
    }
    sum[r] = sum_of_warp(sum[r]);
    if (lane() == 0) total[r * kWarps + warp()] = sum[r];
  }
  __syncthreads();
  for (int unit = static_cast<int>(threadIdx.x); unit < n * s.e; unit += kThreads) {
    const int r = unit / s.e, c = unit % s.e;
    Real mixed = 0, weight = 0;
    for (int t = 0; t < s.rank; ++t)
      mixed = fused(weights[r * s.rank + t], values[static_cast<int64_t>(t) * s.e + c], mixed);
    for (int i = 0; i < kWarps; ++i) weight += total[r * kWarps + i];
    w.o.at(b, h, from + r)[c] = narrowed<T>(quotient(mixed, weight));
  }
  if (const int r = static_cast<int>(threadIdx.x); w.lse && r < n) {
    Real top = kLeast<Real>, weight = 0;
    for (int i = 0; i < kWarps; ++i) {
      top = larger(top, most[r * kWarps + i]);
      weight += total[r * kWarps + i];
    }
    w.lse[(b * s.heads + h) * w.lengths.queries + from + r] = top + logarithm(weight);
  }
  __syncthreads();
}

// Of queries that see nothing: over keys that are zeros the gradients of their scores are zeros as well.
template <class T>
__device__ void clear(const Work<T>& w, int64_t b, int h, int64_t from, int64_t to) {
  for (int64_t unit = from * w.sizes.e + threadIdx.x; unit < to * w.sizes.e; unit += kThreads)
    w.o.at(b, h, unit / w.sizes.e)[unit % w.sizes.e] = narrowed<T>(0);
  for (int64_t i = from + threadIdx.x; w.lse && i < to; i += kThreads)
    w.lse[(b * w.sizes.heads + h) * w.lengths.queries + i] = 0;
}

template <class T>
static __global__ void __launch_bounds__(kThreads, sizeof(RealOf<T>) == sizeof(float) ? 8 : 4)
    append_kernel(const Work<T> w) {
  ATTNKIT_SHARED(RealOf<T>, left, kTile * kRow);
  ATTNKIT_SHARED(RealOf<T>, right, kTile * kRow);
  const int pair = static_cast<int>(blockIdx.x) / w.sizes.tiles(),
            tile = static_cast<int>(blockIdx.x) % w.sizes.tiles();
  const int64_t b = pair / w.sizes.heads;
  const Sight sight(w.lengths, b);
  append<T>(w, {left, right}, b, pair % w.sizes.heads, sight.past, 0, sight.fresh, tile);
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
  ATTNKIT_SHARED(RealOf<T>, left, kTile * kRow);
  ATTNKIT_SHARED(RealOf<T>, right, kTile * kRow);
  const int64_t b = static_cast<int64_t>(blockIdx.x) / w.sizes.heads;
  const int h = static_cast<int>(blockIdx.x) % w.sizes.heads;
  const Sight sight(w.lengths, b);
  int64_t known = 0;
  for (int64_t i = 0; i < sight.queries; ++i) {
    const int64_t seen = sight.seen(i);
    for (int tile = 0; seen > known && tile < w.sizes.tiles(); ++tile)
      append<T>(w, {left, right}, b, h, 0, known, seen, tile);
    if (seen > known) known = seen;
    __syncthreads();
    if (known > 0)
      attend<1>(w, b, h, i, 1);
    else
      clear(w, b, h, i, i + 1);
  }
  clear(w, b, h, sight.queries, w.lengths.queries);
}

}  // namespace linformer::cuda
