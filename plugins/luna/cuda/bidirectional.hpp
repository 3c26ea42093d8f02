// luna's bidirectional run on CUDA, three kernels.  Pack: a block for a head of the pack attention, with a running
// maximum for each row of P.  Project: Y, its keys and values, and P'.  Unpack: a block for kTile queries of a head.
//
// A row of more than kSegment keys has many blocks, so that a few heads fill a device: they pack kSegment keys each, of
// which the first goes on with what was packed before, and combine_kernel brings these to one maximum.  Whether a row
// is split depends on its own length alone, so that neither padding nor neighbours change a bit.
#pragma once
#include "parts.hpp"

namespace luna::cuda {

// One head of the pack attention over fresh keys of a batch row.
template <class T>
class Pack {
  using Real = RealOf<T>;

 public:
  static uint64_t bytes(const Sizes& s, int rows) {
    const int64_t wide = 2 * s.l4() + (s.tied ? 1 : 2) * rows;
    return static_cast<uint64_t>(wide * Sizes::row(s.pack_d()) + rows * Sizes::row(s.l) + 3 * s.l4()) * sizeof(Real);
  }
  // rows: of a tile.
  __device__ Pack(const Work<T>& work, int64_t b, int head, int rows) : w_(work), b_(b), head_(head), rows_(rows) {
    SharedParts parts;
    k_ = parts.take<Real>(rows * row());
    v_ = size().tied ? k_ : parts.take<Real>(rows * row());
    pq_ = parts.take<Real>(size().l4() * row());
    sums_ = parts.take<Real>(size().l4() * row());
    a_ = parts.take<Real>(rows * l_row());
    most_ = parts.take<Real>(size().l4());
    total_ = parts.take<Real>(size().l4());
    down_ = parts.take<Real>(size().l4());
  }

  // Keys [from, to); goes_on: with what is known.  to_known: where what is packed goes.
  __device__ void operator()(int64_t from, int64_t to, bool goes_on, Real* to_known) {
    const Sizes& s = size();
    const int dp = s.pack_d();
    begin(goes_on);
    for (int64_t j = from; j < to; j += rows_) {
      const int n = static_cast<int>(to - j < rows_ ? to - j : rows_);
      load_part(w_.pk, j, n, k_);
      if (!s.tied) load_part(w_.pv, j, n, v_);
      __syncthreads();
      for_dots<2>(k_, row(), round4(n), pq_, row(), s.l4(), round4(dp), All{},
                  [&](int i, int r, Real y) { a_[i * l_row() + r] = y; });
      __syncthreads();
      rescale(n);
      __syncthreads();
      add_outer(a_, l_row(), v_, row(), n, s.l4(), dp, sums_, row(),
                [&](int r) { return static_cast<Real>(down_[r]); });
      __syncthreads();
    }
    store_rows(sums_, row(), s.l, dp, to_known + head_ * dp, s.width());
    for (int r = static_cast<int>(threadIdx.x); r < s.l; r += kThreads) {
      to_known[s.largest() + static_cast<int64_t>(head_) * s.l + r] = most_[r];
      to_known[s.totals() + static_cast<int64_t>(head_) * s.l + r] = total_[r];
    }
  }

 private:
  __device__ const Sizes& size() const { return w_.sizes; }
  __device__ int row() const { return Sizes::row(size().pack_d()); }
  __device__ int l_row() const { return Sizes::row(size().l); }

  // Columns of this head, which those of the block need not share.
  __device__ void load_part(const Rows<const T>& x, int64_t first, int n, const Shared<Real>& to) const {
    const int d = size().d, from = head_ * size().pack_d();
    load(n, round4(n), size().pack_d(), to, row(),
         [&](int j, int c) { return x.at(b_, (from + c) / d, first + j)[(from + c) % d]; });
  }
  // P W_pq of this head and what was packed before.
  __device__ void begin(bool goes_on) {
    const Sizes& s = size();
    const int dp = s.pack_d(), from = head_ * dp;
    const Real* known = w_.known(b_);
    clear(pq_, s.l4() * row());
    if (goes_on)
      load_rows(known + from, s.width(), s.l, dp, sums_, row());
    else
      clear(sums_, s.l4() * row());
#pragma unroll 1
    for (int r = static_cast<int>(threadIdx.x); r < s.l4(); r += kThreads) {
      const bool has = goes_on && r < s.l;
      most_[r] = has ? known[s.largest() + static_cast<int64_t>(head_) * s.l + r] : kLeast<Real>;
      total_[r] = has ? known[s.totals() + static_cast<int64_t>(head_) * s.l + r] : Real{0};
    }
    __syncthreads();
    w_.pq.apply(
        s.width(), from, dp, s.l, [&](int r, int f) { return w_.p.at(b_, 0, r)[f]; },
        [&](int r, int c, Real y) { pq_[r * row() + c - from] = y * w_.pack_scale; });
    __syncthreads();
  }
  // Scores of n keys become e^(score - m), a warp to a row of P, m the largest so far; a NaN is never the largest.
  __device__ void rescale(int n) {
#pragma unroll 1
    for (int r = warp(); r < size().l4(); r += kWarps) {
      const Real before = most_[r];
      Real most = before, sum = 0;
#pragma unroll 1
      for (int j = lane(); j < n; j += 32) most = larger(most, static_cast<Real>(a_[j * l_row() + r]));
      for (int bits = 16; bits > 0; bits /= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
#pragma unroll 1
      for (int j = lane(); j < n; j += 32) {
        const Real x = exponential(a_[j * l_row() + r] - most);
        a_[j * l_row() + r] = x;
        sum += x;
      }
      sum = sum_of_warp(sum);
      const Real all = total_[r];
      __syncwarp();  // all have read the row's m and total
      if (lane() == 0) {
        const Real down = exponential(before - most);
        down_[r] = down;
        most_[r] = most;
        total_[r] = fused(all, down, sum);
      }
    }
  }

  const Work<T>& w_;
  const int64_t b_;
  const int head_, rows_;
  Shared<Real> k_, v_, pq_, sums_, a_, most_, total_, down_;
};

// rows: of a tile.
template <class T>
static __global__ void __launch_bounds__(kThreads, kBlocks<T>) pack_kernel(const Work<T> w, int rows) {
  const int64_t b = blockIdx.x / w.sizes.pack_heads, segment = blockIdx.y, from = segment * kSegment;
  const Sight sight(w.lengths, b);
  const bool is_split = w.split && sight.fresh > kSegment;
  if (is_split ? from >= sight.fresh : segment > 0 || sight.fresh == 0) return;
  const int64_t to = is_split && from + kSegment < sight.fresh ? from + kSegment : sight.fresh;
  Pack<T>(w, b, static_cast<int>(blockIdx.x % w.sizes.pack_heads), rows)(
      from, to, sight.past > 0 && segment == 0, is_split ? w.split_row(b) + segment * w.sizes.keys() : w.known(b));
}

// Brings what was packed of a split row's segments to one maximum; a thread per sum of the pack softmax and per total.
template <class T>
static __global__ void __launch_bounds__(kThreads) combine_kernel(const Work<T> w) {
  using Real = RealOf<T>;
  const Sizes& s = w.sizes;
  const int64_t blocks = (s.totals() + kThreads - 1) / kThreads, b = blockIdx.x / blocks;
  const int64_t f = blockIdx.x % blocks * kThreads + threadIdx.x;
  const Sight sight(w.lengths, b);
  const int64_t totals = static_cast<int64_t>(s.l) * s.pack_heads;
  if (!w.split || sight.fresh <= kSegment || f >= s.largest() + totals) return;
  const bool is_total = f >= s.largest();
  const int64_t r = f / s.width(), head = f % s.width() / s.pack_d(), sum_at = is_total ? f + totals : f,
                most_at = is_total ? f : s.largest() + head * s.l + r;
  const Real* part = w.split_row(b);
  Real most = part[most_at], sum = part[sum_at];
  for (int64_t n = 1; n < segments_of(sight.fresh); ++n) {
    part += s.keys();
    const Real own = part[most_at], next = larger(most, own);
    sum = fused(sum, exponential(most - next), part[sum_at] * exponential(own - next));
    most = next;
  }
  Real* const known = w.known(b);
  known[sum_at] = sum;
  if (is_total) known[most_at] = most;
}

// Blocks of a batch row that project Y: kColumns keys or values each, and one for P'.
__host__ __device__ inline int project_blocks(const Sizes& s) {
  const int all = s.width() + (s.tied ? 0 : s.heads * s.e);
  return (all + kColumns - 1) / kColumns + 1;
}

// Rows of P that count once so many keys are known.
__device__ inline int live_rows(const Sizes& s, int64_t known) {
  return known == 0 ? 0 : s.dynamic && known < s.l ? static_cast<int>(known) : s.l;
}

// LN(x) is (x - mean) factor weight + bias.
struct Moments {
  double mean, factor;
};
// Of a row of Y + P; a warp.
template <class X>
__device__ Moments moments_of(int width, const X& x) {
  double sum = 0, square = 0;
  for (int c = lane(); c < width; c += 32) sum += x(c);
  const double mean = sum_of_warp(sum) / width;
  for (int c = lane(); c < width; c += 32) square = fused(x(c) - mean, x(c) - mean, square);
  return {mean, 1 / sqrt(sum_of_warp(square) / width + 1e-5)};
}

// P' = LN(Y + P), a warp to a row, its moments in f64; zeros in the rows that do not count.
template <class T, class Y>
__device__ void normalise(const Work<T>& w, int64_t b, int live, const Y& y, RealOf<T>* to) {
  using Real = RealOf<T>;
  const int width = w.sizes.width();
  for (int r = warp(); r < w.sizes.l; r += kWarps) {
    Real* next = to + static_cast<int64_t>(r) * width;
    const auto x = [&](int c) { return static_cast<double>(y(r, c)) + w.p.at(b, 0, r)[c]; };
    const Moments of = moments_of(width, x);
    for (int c = lane(); c < width; c += 32)
      next[c] =
          r < live ? static_cast<Real>((x(c) - of.mean) * of.factor) * w.norm_weight[c] + w.norm_bias[c] : Real{0};
  }
}

template <class T>
static __global__ void __launch_bounds__(kThreads, kBlocks<T>) project_kernel(const Work<T> w) {
  using Real = RealOf<T>;
  const Sizes& s = w.sizes;
  const int blocks = project_blocks(s), block = static_cast<int>(blockIdx.x) % blocks, width = s.width();
  const int64_t b = blockIdx.x / blocks;
  const Sight sight(w.lengths, b);
  if (sight.fresh == 0) return;
  Real* known = w.known(b);
  const auto y = [&](int r, int c) { return s.packed(known, r, c); };
  if (block == blocks - 1) {
    if (s.contextual) normalise(w, b, live_rows(s, sight.past + sight.fresh), y, known + s.next());
    return;
  }
  const int from = block * kColumns, all = width + (s.tied ? 0 : s.heads * s.e);
  const int to = from + kColumns < all ? from + kColumns : all;
  const auto project = [&](const Dense<Real>& dense, int begin, int end, int64_t at, int columns) {
    if (begin < end)
      dense.apply(width, begin, end - begin, s.l, y,
                  [&](int r, int c, Real x) { known[at + static_cast<int64_t>(r) * columns + c] = x; });
  };
  project(w.keys, from, to < width ? to : width, s.keys(), width);
  if (!s.tied) project(w.values, from > width ? from - width : 0, to - width, s.values(), s.heads * s.e);
}

// Queries of a head against the packed sequence.
template <class T>
class Unpack {
  using Real = RealOf<T>;

 public:
  static uint64_t bytes(const Sizes& s, int rows) {
    const int64_t packed = Sizes::row(s.d) + (s.tied ? 0 : Sizes::row(s.e));
    return static_cast<uint64_t>(s.l4() * packed + rows * (Sizes::row(s.d) + Sizes::row(s.l))) * sizeof(Real);
  }
  __device__ Unpack(const Work<T>& work, int64_t b, int h, int rows) : w_(work), b_(b), h_(h) {
    SharedParts parts;
    q_ = parts.take<Real>(rows * row());
    weights_ = parts.take<Real>(rows * l_row());
    keys_ = parts.take<Real>(size().l4() * row());
    values_ = size().tied ? keys_ : parts.take<Real>(size().l4() * values_row());
  }
  __device__ void operator()(int64_t from, int n, int live) {
    const Sizes& s = size();
    const int rows = round4(n);
    if (live == 0) {
      for (int i = warp(); i < n; i += kWarps)
        for (int c = lane(); c < s.e; c += 32) w_.o.at(b_, h_, from + i)[c] = narrowed<T>(0);
      return;
    }
    const int live4 = round4(live);
    const Real* known = w_.known(b_);
    load_head(w_.q, b_, h_, from, n, s.d, q_, row());
    load_rows(known + s.keys() + static_cast<int64_t>(h_) * s.d, s.width(), live, s.d, keys_, row());
    if (!s.tied)
      load_rows(known + s.values() + static_cast<int64_t>(h_) * s.e, s.heads * s.e, live, s.e, values_, values_row());
    __syncthreads();
    for_dots<2>(q_, row(), rows, keys_, row(), live4, round4(s.d), All{},
                [&](int i, int r, Real y) { weights_[i * l_row() + r] = y; });
    __syncthreads();
    weigh(
        weights_, l_row(), n, live, live4, [&](int) { return w_.scale; }, [](int) { return Real{1}; });
    __syncthreads();
    for_fours(n, s.e, [&](int i, int c) {
      Four<Real> sum[4] = {};
      multiply<Real>(weights_ + i * l_row(), l_row(), values_ + c, values_row(), live4, sum);
      put_rows(n - i, s.e - c, sum, [&](int r) { return w_.o.at(b_, h_, from + i + r) + c; });
    });
  }

 private:
  __device__ const Sizes& size() const { return w_.sizes; }
  __device__ int row() const { return Sizes::row(size().d); }
  __device__ int values_row() const { return Sizes::row(size().e); }
  __device__ int l_row() const { return Sizes::row(size().l); }

  const Work<T>& w_;
  const int64_t b_;
  const int h_;
  Shared<Real> q_, weights_, keys_, values_;
};

// rows: of a tile; no number depends on it.
template <class T>
static __global__ void __launch_bounds__(kThreads, kBlocks<T>) unpack_kernel(const Work<T> w, int rows) {
  const Sizes& s = w.sizes;
  const int pair = static_cast<int>(blockIdx.x) / w.tiles, tile = static_cast<int>(blockIdx.x) % w.tiles;
  const int64_t b = pair / s.heads, from = static_cast<int64_t>(tile) * rows;
  const int h = pair % s.heads;
  const Sight sight(w.lengths, b);
  const int64_t known = sight.past + sight.fresh, left = sight.queries - from;
  if (left > 0) Unpack<T>(w, b, h, rows)(from, static_cast<int>(left < rows ? left : rows), live_rows(s, known));
  if (tile == 0) clear_outputs(w, b, h, sight.queries);
  if (tile != 0 || h != 0 || !s.contextual) return;
  for (int r = warp(); r < s.l; r += kWarps)
    for (int c = lane(); c < s.width(); c += 32)
      w.next.at(b, 0, r)[c] = known > 0 ? w.known(b)[s.next() + static_cast<int64_t>(r) * s.width() + c] : 0;
}

}  // namespace luna::cuda
