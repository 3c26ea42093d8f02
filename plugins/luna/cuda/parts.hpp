// The parts that luna's kernels share on CUDA: their arguments, rows in shared memory, products of tiles, weights.
//
// All products are in f32, in f64 where the tensors are; 16 bits are widened when a row is loaded.
#pragma once
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/tile.hpp>
#include <limits>

#include "../model.hpp"

namespace luna::cuda {

using namespace attnkit::cuda;
using attnkit::cuda::Sight;  // luna's is the CPU's

constexpr int kThreads = 128, kWarps = kThreads / 32;
template <class Real>
constexpr Real kLeast = std::numeric_limits<Real>::lowest();
// Blocks that are to fit into a multiprocessor; f64 is for checks.
template <class T>
constexpr int kBlocks = sizeof(T) == 8 ? 1 : 4;
constexpr int kTile = 32, kFew = 8;
constexpr int kColumns = 32;  // of Y's projections, of a block
constexpr int64_t kSegment = 1024;
__host__ __device__ constexpr int64_t segments_of(int64_t rows) { return (rows + kSegment - 1) / kSegment; }

struct Sizes {
  int heads, d, e, l, pack_heads;  // e: of a head's output
  bool tied, contextual, dynamic;
  Map map;
  explicit Sizes(const Shape& s)
      : heads(static_cast<int>(s.heads)),
        d(static_cast<int>(s.d)),
        e(static_cast<int>(s.values())),
        l(static_cast<int>(s.l)),
        pack_heads(static_cast<int>(s.pack_heads)),
        tied(s.tied),
        contextual(s.contextual),
        dynamic(s.dynamic),
        map(s.map) {}
  __host__ __device__ int width() const { return heads * d; }
  __host__ __device__ int pack_d() const { return width() / pack_heads; }
  __host__ __device__ int l4() const { return round4(l); }
  // Places in what is known of a batch row, as luna::Causal and luna::Packed have them; pq and the sums of the pack
  // begin it.
  __host__ __device__ int64_t rows_of_p() const { return static_cast<int64_t>(l) * width(); }
  __device__ int64_t causal_keys() const { return rows_of_p(); }
  __device__ int64_t causal_values() const { return tied ? causal_keys() : causal_keys() + rows_of_p(); }
  __device__ int64_t live() const { return causal_values() + static_cast<int64_t>(l) * heads * e; }
  __host__ __device__ int64_t largest() const { return rows_of_p(); }
  __host__ __device__ int64_t totals() const { return largest() + static_cast<int64_t>(l) * pack_heads; }
  __host__ __device__ int64_t keys() const { return totals() + static_cast<int64_t>(l) * pack_heads; }
  __device__ int64_t values() const { return tied ? keys() : keys() + rows_of_p(); }
  __device__ int64_t next() const { return values() + static_cast<int64_t>(l) * heads * e; }
  // Of a causal head, the sums of A k^T, then untied those of A v^T.
  __host__ __device__ int64_t sums() const { return static_cast<int64_t>(l) * (tied ? d : d + e); }
  // Numbers of the scratch of a batch row that may be split, of so many keys.  Causal: P W_pq, and by heads the sums of
  // the keys before each segment and before their end.  Else: what is packed of each segment, as what is known begins.
  __host__ __device__ int64_t split_row(bool causal, int64_t fresh) const {
    const int64_t segments = segments_of(fresh);
    return causal ? rows_of_p() + heads * (1 + segments) * sums() : segments * keys();
  }
  // A number of Y.
  template <class Real>
  __device__ Real packed(const Real* known, int r, int c) const {
    return quotient(known[static_cast<int64_t>(r) * width() + c],
                    known[totals() + static_cast<int64_t>(c / pack_d()) * l + r]);
  }
  // From row to row; 4: neighbours lie in different banks.
  __host__ __device__ static int row(int n) { return round4(n) + 4; }
};

// A learned projection.
template <class Real>
struct Dense {
  Rows<const Real> weight;
  const Real* bias;
  Dense(const attn_run& r, attnkit::Port w, attnkit::Port b)
      : weight(attnkit::View<const Real>(r, w)), bias(attnkit::View<const Real>(r, b).data) {}

  // Calls put(r, c, W_c . x_r + b_c) for columns [from, from + count) of n rows x(r, f), a warp to a column.
  template <class X, class Put>
  __device__ void apply(int width, int from, int count, int n, const X& x, const Put& put) const {
    for (int c = from + warp(); c < from + count; c += kWarps)
      for (int r = 0; r < n; r += 4) {
        Real sum[4] = {};
        for (int f = lane(); f < width; f += 32) {
          const Real w = weight.at(0, 0, c)[f];
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (r + i < n) sum[i] = fused(w, x(r + i, f), sum[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const Real all = sum_of_warp(sum[i]);
          if (lane() == 0 && r + i < n) put(r + i, c, all + bias[c]);
        }
      }
  }
};

// The arguments of a run.  Tied, v and pv are k and pk.
template <class T>
struct Work {
  using Real = RealOf<T>;
  Sizes sizes;
  Rows<const T> q, k, v, pk, pv;
  Rows<T> o;
  Rows<const Real> p;
  bool aux;  // P is a sequence of the run, else the learned one
  Dense<Real> pq, keys, values;
  const Real *norm_weight, *norm_bias;
  Rows<Real> next;
  Lengths lengths;
  States states;
  Real* memory;  // what is known of each batch row, where there is no state
  int64_t memory_row;
  Real* split;  // NULL: no row is
  Real scale, pack_scale;
  int tiles;  // of a head's queries, in blocks of their own

  __device__ Real* known(int64_t b) const {
    if constexpr (std::is_same_v<Real, float>)
      if (states) return states.row(b);
    return memory + b * memory_row;
  }
  __device__ Real* split_row(int64_t b) const { return split + b * sizes.split_row(lengths.causal, lengths.keys); }
};

__device__ inline float magnitude(float x) { return fabsf(x); }
__device__ inline double magnitude(double x) { return fabs(x); }
__device__ inline float log_of_more(float x) { return log1pf(x); }
__device__ inline double log_of_more(double x) { return log1p(x); }
template <class Real>
__device__ Real base_of(Map map) {
  return map == Map::kLog2 ? static_cast<Real>(0.69314718055994531) : Real{1};
}
// w of the causal pack.  NaN stays NaN.
template <class Real>
__device__ Real activate(Map map, Real x) {
  if (map == Map::kElu1) return x > 0 ? x + 1 : exponential(x);
  const Real base = base_of<Real>(map);
  return (x < 0 ? 0 : x) + log_of_more(exponential(-magnitude(x) * base)) / base;
}

// Its slope.
template <class Real>
__device__ Real slope_of(Map map, Real x) {
  if (map == Map::kElu1) return x > 0 ? Real{1} : exponential(x);
  const Real power = exponential(-magnitude(x) * base_of<Real>(map));
  return quotient(x > 0 ? Real{1} : power, power + 1);
}

// Rows of numbers number(j, c); zeros where `room` has more than n rows or a row more than `count` columns.
template <class Real, class Number>
__device__ void load(int n, int room, int count, const Shared<Real>& to, int to_row, const Number& number) {
  for (int j = warp(); j < room; j += kWarps)
    for (int c = lane(); c < round4(count); c += 32)
      to[j * to_row + c] = j < n && c < count ? widened(number(j, c)) : Real{0};
}
// n rows of a head.
template <class Real, class T>
__device__ void load_head(const Rows<const T>& x, int64_t b, int h, int64_t first, int n, int count,
                          const Shared<Real>& to, int to_row) {
  load(n, round4(n), count, to, to_row, [&](int j, int c) { return x.at(b, h, first + j)[c]; });
}
// l rows in global memory.
template <class Real>
__device__ void load_rows(const Real* x, int64_t x_row, int l, int count, const Shared<Real>& to, int to_row) {
  for (int r = warp(); r < round4(l); r += kWarps)
    for (int c = lane(); c < round4(count); c += 32)
      to[r * to_row + c] = r < l && c < count ? x[r * x_row + c] : Real{0};
}
template <class Real>
__device__ void clear(const Shared<Real>& x, int count) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) x[i] = 0;
}
template <class Real>
__device__ void store_rows(const Shared<Real>& x, int x_row, int l, int count, Real* to, int64_t to_row) {
#pragma unroll 1
  for (int r = warp(); r < l; r += kWarps)
#pragma unroll 1
    for (int c = lane(); c < count; c += 32) to[r * to_row + c] = x[r * x_row + c];
}

// Four numbers of a row of outputs, of which n exist.
template <class T>
__device__ void put_four(T* to, int n, const Four<RealOf<T>>& x) {
  to[0] = narrowed<T>(x.x);
  if (n > 1) to[1] = narrowed<T>(x.y);
  if (n > 2) to[2] = narrowed<T>(x.z);
  if (n > 3) to[3] = narrowed<T>(x.w);
}

// The first of four rows of four columns, of which there are `rows` and `columns`; row(r) is where the r-th goes.
template <class Real, class Row>
__device__ void put_rows(int rows, int columns, const Four<Real> (&x)[4], const Row& row) {
#pragma unroll
  for (int r = 0; r < 4; ++r)
    if (r < rows) put_four(row(r), columns, x[r]);
}
// Calls visit(i, c) for every four of n rows and every four of `width` columns, one to a thread.
template <class Visit>
__device__ void for_fours(int n, int width, const Visit& visit) {
  const int fours = round4(width) / 4;
#pragma unroll 1
  for (int unit = static_cast<int>(threadIdx.x); unit < round4(n) / 4 * fours; unit += kThreads)
    visit(unit / fours * 4, unit % fours * 4);
}

// Calls put(i, j, x_i . y_j) for `rows` rows of x and `columns` rows of y, both even, by kDown and two of them, but
// where wanted(the last i, the first j) says no.
template <int kDown, class Real, class Wanted, class Put>
__device__ void for_dots(const Shared<Real>& x, int x_row, int rows, const Shared<Real>& y, int y_row, int columns,
                         int depth, const Wanted& wanted, const Put& put) {
#pragma unroll 1
  for (int unit = static_cast<int>(threadIdx.x); unit < rows / kDown * (columns / 2); unit += kThreads) {
    const int i = unit / (columns / 2) * kDown, j = unit % (columns / 2) * 2;
    if (!wanted(i + kDown - 1, j)) continue;
    Real sum[kDown][2] = {};
#pragma unroll 2
    for (int f = 0; f < depth; f += 4) {
      const Four<Real> y0 = four<Real>(y + (j * y_row + f)), y1 = four<Real>(y + ((j + 1) * y_row + f));
#pragma unroll
      for (int r = 0; r < kDown; ++r) {
        const Four<Real> own = four<Real>(x + ((i + r) * x_row + f));
        sum[r][0] = dot(own, y0, sum[r][0]);
        sum[r][1] = dot(own, y1, sum[r][1]);
      }
    }
#pragma unroll
    for (int r = 0; r < kDown; ++r) {
      put(i + r, j, sum[r][0]);
      put(i + r, j + 1, sum[r][1]);
    }
  }
}
struct All {
  __device__ bool operator()(int, int) const { return true; }
};

// to_r = to_r down(r) + sum over n rows j of a_jr x_j, for l4 rows of `width` columns.
template <class Real, class Down>
__device__ void add_outer(const Shared<Real>& a, int a_row, const Shared<Real>& x, int x_row, int n, int l4, int width,
                          const Shared<Real>& to, int to_row, const Down& down) {
  const int fours = round4(width) / 4;
#pragma unroll 1
  for (int unit = static_cast<int>(threadIdx.x); unit < l4 / 2 * fours; unit += kThreads) {
    const int r = unit / fours * 2, c = unit % fours * 4;
    Four<Real> sum[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Real by = down(r + i);
      sum[i] = four<Real>(to + ((r + i) * to_row + c));
      sum[i] = {sum[i].x * by, sum[i].y * by, sum[i].z * by, sum[i].w * by};
    }
    for (int j = 0; j < n; ++j) {
      const Four<Real> own = four<Real>(x + (j * x_row + c));
      add<Real>(sum[0], a[j * a_row + r], own);
      add<Real>(sum[1], a[j * a_row + r + 1], own);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) as<Four<Real>>(to + ((r + i) * to_row + c))[0] = sum[i];
  }
}

// Logits of n queries over `live` rows become weights: softmax(by(i) logits) / divisor(i), zeros behind them and in the
// rows that make n a multiple of 4.
template <class Real, class By, class Divisor>
__device__ void weigh(const Shared<Real>& w, int row, int n, int live, int l4, const By& by, const Divisor& divisor) {
#pragma unroll 1
  for (int i = warp(); i < round4(n); i += kWarps) {
    const int count = i < n ? live : 0;
    const Real scale = i < n ? by(i) : 0;
    Real most = kLeast<Real>, sum = 0;
#pragma unroll 1
    for (int r = lane(); r < count; r += 32) most = larger(most, w[i * row + r] * scale);
    for (int bits = 16; bits > 0; bits /= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
#pragma unroll 1
    for (int r = lane(); r < count; r += 32) {
      const Real x = exponential(w[i * row + r] * scale - most);
      w[i * row + r] = x;
      sum += x;
    }
    const Real share = count > 0 ? reciprocal(sum_of_warp(sum) * divisor(i)) : 0;
#pragma unroll 1
    for (int r = lane(); r < l4; r += 32) w[i * row + r] = r < count ? w[i * row + r] * share : Real{0};
  }
}

// Rows of outputs past the last query.
template <class T>
__device__ void clear_outputs(const Work<T>& w, int64_t b, int h, int64_t from) {
  for (int64_t i = from + warp(); i < w.lengths.queries; i += kWarps)
    for (int c = lane(); c < w.sizes.e; c += 32) w.o.at(b, h, i)[c] = narrowed<T>(0);
}

}  // namespace luna::cuda
