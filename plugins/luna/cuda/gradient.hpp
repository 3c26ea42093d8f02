// luna's gradient on CUDA.  Bidirectional, with w the weights of the unpack attention, A those of the pack attention, s
// the scale of each and G, G' the gradients of o and P':
//
//   dw_i = V G_i,   dl_i = s w_i (dw_i - w_i . dw_i),   dq_i = K^T dl_i,   dK = sum dl_i q_i^T,   dV = sum w_i G_i^T
//   dY = dK W_k^T + dV W_v^T + dLN(G'),   da_rj = A_rj (dY_r . pv_j - dY_r . Y_r)
//   dpv_j = sum A_rj dY_r,   dpk_j = s sum da_rj pq_r,   dpq_r = s sum da_rj pk_j
//
// Causal, K_t and V_t being the sums up to t, of which query t sees t keys:
//
//   dw_t = V_t G_t / t,   dl_t = s/t w_t (dw_t - w_t . dw_t),   dq_t = K_t^T dl_t
//   R_j = sum_(t >= j) w_t G_t^T / t,   R'_j = sum_(t >= j) dl_t q_t^T,   dv_j = R_j^T A_j,   dk_j = R'_j^T A_j
//   da_rj = w'(a_rj) (R_j v_j + R'_j k_j)_r,   dpk_j = s sum da_rj pq_r,   dpq_r = s sum da_rj pk_j
//
// and dP = dpq W_pq^T + dLN(G').  A block walks the queries of a head, another the keys of a head of the pack
// attention; blocks of 32 columns make dY and dP.  A causal head is one block's walk forth and back, a tile of queries
// and their keys at a time, which leaves in scratch w / t and dl, 2 l numbers of a query.  What is learned is added up
// over batch rows in their order.  Keys and queries that do not see each other, and rows of P that do not count, are in
// no sum.
#pragma once
#include "bidirectional.hpp"
#include "causal.hpp"

namespace luna::cuda {

template <class Real>
struct GradientWork {
  Work<Real> run;
  Rows<const Real> given, given_next;   // of o and of P'
  Rows<Real> dq, dk, dv, dpk, dpv, dp;  // without data where they are skipped; those of values are none if tied
  // By batch row, l rows each: P W_pq times the scale, Y, and the gradients of Y's keys and values, which are one if
  // tied, of Y, of P W_pq and of P.
  Real *pq, *packed, *of_keys, *of_values, *of_packed, *of_pq, *of_p;
  double* moments;  // of each row of P
  Real* norm;       // gradients of the norm's scale and shift, by batch row
  Real* scores;     // causal: w / t and dl [l] of every query
  int64_t batch;

  __device__ Real* rows(Real* all, int64_t b) const { return all + b * run.sizes.rows_of_p(); }
  __device__ Real* values_of(int64_t b) const { return of_values + b * run.sizes.l * run.sizes.heads * run.sizes.e; }
  // Of P, that count.
  __device__ int live(int64_t b) const {
    const Sight sight(run.lengths, b);
    if (sight.fresh == 0) return 0;
    return run.lengths.causal ? count_live(run, b) : live_rows(run.sizes, sight.fresh);
  }
};

// Weights of n rows and the gradients of them become gradients of scores, by(i) w (dw - w . dw); then the weights
// shrink to w / divisor(i).  The threads that have a row are those of weigh.
template <class Real, class By, class Divisor>
__device__ void differentiate(const Shared<Real>& w, const Shared<Real>& dw, int row, int n, int live, const By& by,
                              const Divisor& divisor) {
#pragma unroll 1
  for (int i = warp(); i < n; i += kWarps) {
    Real mean = 0;
#pragma unroll 1
    for (int r = lane(); r < live; r += 32) mean = fused(w[i * row + r], dw[i * row + r], mean);
    mean = sum_of_warp(mean);
#pragma unroll 1
    for (int r = lane(); r < live; r += 32) {
      const Real x = w[i * row + r];
      dw[i * row + r] = by(i) * x * (dw[i * row + r] - mean);
      w[i * row + r] = quotient(x, divisor(i));
    }
  }
}
// Rows [from, to) of a head.
template <class Real>
__device__ void clear(const Rows<Real>& rows, int64_t b, int h, int64_t from, int64_t to, int width) {
  if (!rows.data) return;
  for (int64_t i = from + warp(); i < to; i += kWarps)
#pragma unroll 1
    for (int c = lane(); c < width; c += 32) rows.at(b, h, i)[c] = 0;
}
template <class Real>
struct Stays {
  __device__ Real operator()(int) const { return 1; }
};

// Gradients that Y, P and the norm get from P'; zeros where there is no P' and in rows that do not count.
template <class Real>
__device__ void give_next(const GradientWork<Real>& w, int64_t b, int live) {
  const Sizes& s = w.run.sizes;
  const int width = s.width();
  Real *const dy = w.rows(w.of_packed, b), *const dp = w.rows(w.of_p, b), *const norm = w.norm + b * 2 * width;
  double* const moments = w.moments + b * 2 * s.l;
  const bool given = w.given_next.data != nullptr;
  const auto x = [&](int r, int c) {
    return static_cast<double>(s.packed(w.run.known(b), r, c)) + w.run.p.at(b, 0, r)[c];
  };
  for (int r = warp(); r < s.l; r += kWarps) {
    const int64_t at = static_cast<int64_t>(r) * width;
    const bool gives = given && r < live;
    Moments of{0, 0};
    double mean = 0, slope = 0;
    const auto g = [&](int c) { return static_cast<double>(w.given_next.at(b, 0, r)[c]) * w.run.norm_weight[c]; };
    if (gives) {
      of = moments_of(width, [&](int c) { return x(r, c); });
      for (int c = lane(); c < width; c += 32) {
        mean += g(c);
        slope = fused(g(c), (x(r, c) - of.mean) * of.factor, slope);
      }
      mean = sum_of_warp(mean) / width;
      slope = sum_of_warp(slope) / width;
    }
    for (int c = lane(); c < width; c += 32) {
      Real of_row = 0;
      if (gives) of_row = static_cast<Real>((g(c) - mean - (x(r, c) - of.mean) * of.factor * slope) * of.factor);
      dp[at + c] = of_row;
      if (!w.run.lengths.causal) dy[at + c] = of_row;
    }
    if (gives && lane() == 0) {
      moments[2 * r] = of.mean;
      moments[2 * r + 1] = of.factor;
    }
  }
  if (!given) return;
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < width; c += kThreads) {
    double scale = 0, shift = 0;
    for (int r = 0; r < live; ++r) {
      const double g = w.given_next.at(b, 0, r)[c];
      scale = fused(g, (x(r, c) - moments[2 * r]) * moments[2 * r + 1], scale);
      shift += g;
    }
    norm[c] = static_cast<Real>(scale);
    norm[width + c] = static_cast<Real>(shift);
  }
}

__host__ __device__ inline int column_blocks(const Sizes& s) { return (s.width() + kColumns - 1) / kColumns; }

// By blocks of columns P W_pq and Y; a block more for what P' gives.
template <class Real>
static __global__ void __launch_bounds__(kThreads, kBlocks<Real>) begin_kernel(const GradientWork<Real> w) {
  const Sizes& s = w.run.sizes;
  const int blocks = column_blocks(s) + 1, block = static_cast<int>(blockIdx.x) % blocks, width = s.width();
  const int64_t b = blockIdx.x / blocks;
  const int live = w.live(b);
  if (block == blocks - 1) return give_next(w, b, live);
  const int from = block * kColumns, count = width - from < kColumns ? width - from : kColumns;
  Real *const pq = w.rows(w.pq, b), *const packed = w.rows(w.packed, b);
  w.run.pq.apply(
      width, from, count, live, [&](int r, int f) { return w.run.p.at(b, 0, r)[f]; },
      [&](int r, int c, Real y) { pq[static_cast<int64_t>(r) * width + c] = y * w.run.pack_scale; });
  for (int r = warp(); !w.run.lengths.causal && r < live; r += kWarps)
    if (lane() < count)
      packed[static_cast<int64_t>(r) * width + from + lane()] = s.packed(w.run.known(b), r, from + lane());
}

// The queries of a head.
template <class Real>
class UnpackGradient {
 public:
  static uint64_t bytes(const Sizes& s, int rows) {
    const int64_t d = Sizes::row(s.d), e = Sizes::row(s.e), packed = s.tied ? d : d + e;
    return static_cast<uint64_t>(2 * s.l4() * packed + rows * (d + e + 2 * Sizes::row(s.l))) * sizeof(Real);
  }
  // rows: of a tile.
  __device__ UnpackGradient(const GradientWork<Real>& work, int64_t b, int h, int rows)
      : w_(work), b_(b), h_(h), rows_(rows), sight_(work.run.lengths, b), live_(work.live(b)) {
    SharedParts parts;
    q_ = parts.take<Real>(rows * row());
    g_ = parts.take<Real>(rows * values_row());
    weights_ = parts.take<Real>(rows * l_row());
    slopes_ = parts.take<Real>(rows * l_row());
    keys_ = parts.take<Real>(size().l4() * row());
    of_keys_ = parts.take<Real>(size().l4() * row());
    values_ = size().tied ? keys_ : parts.take<Real>(size().l4() * values_row());
    of_values_ = size().tied ? of_keys_ : parts.take<Real>(size().l4() * values_row());
  }

  __device__ void operator()() {
    const Sizes& s = size();
    const int64_t keys_at = static_cast<int64_t>(h_) * s.d, values_at = static_cast<int64_t>(h_) * s.e;
    clear(w_.dq, b_, h_, live_ > 0 ? sight_.queries : 0, w_.run.lengths.queries, s.d);
    if (live_ == 0) return;
    const Real* const known = w_.run.known(b_);
    load_rows(known + s.keys() + keys_at, s.width(), live_, s.d, keys_, row());
    clear(of_keys_, s.l4() * row());
    if (!s.tied) {
      load_rows(known + s.values() + values_at, s.heads * s.e, live_, s.e, values_, values_row());
      clear(of_values_, s.l4() * values_row());
    }
    for (int64_t from = 0; from < sight_.queries; from += rows_)
      take(from, static_cast<int>(sight_.queries - from < rows_ ? sight_.queries - from : rows_));
    __syncthreads();
    store_rows(of_keys_, row(), live_, s.d, w_.rows(w_.of_keys, b_) + keys_at, s.width());
    if (!s.tied) store_rows(of_values_, values_row(), live_, s.e, w_.values_of(b_) + values_at, s.heads * s.e);
  }

 private:
  __device__ const Sizes& size() const { return w_.run.sizes; }
  __device__ int row() const { return Sizes::row(size().d); }
  __device__ int values_row() const { return Sizes::row(size().e); }
  __device__ int l_row() const { return Sizes::row(size().l); }

  __device__ void take(int64_t from, int n) {
    const Sizes& s = size();
    const int live4 = round4(live_);
    load_head(w_.run.q, b_, h_, from, n, s.d, q_, row());
    load_head(w_.given, b_, h_, from, n, s.e, g_, values_row());
    __syncthreads();
    for_dots<2>(q_, row(), round4(n), keys_, row(), live4, round4(s.d), All{},
                [&](int i, int r, Real y) { weights_[i * l_row() + r] = y; });
    for_dots<2>(g_, values_row(), round4(n), values_, values_row(), live4, round4(s.e), All{},
                [&](int i, int r, Real y) { slopes_[i * l_row() + r] = y; });
    __syncthreads();
    weigh(
        weights_, l_row(), n, live_, live4, [&](int) { return w_.run.scale; }, Stays<Real>{});
    differentiate(
        weights_, slopes_, l_row(), n, live_, [&](int) { return w_.run.scale; }, Stays<Real>{});
    __syncthreads();
    if (w_.dq.data)
      for_fours(n, s.d, [&](int i, int c) {
        Four<Real> sum[4] = {};
        multiply<Real>(slopes_ + i * l_row(), l_row(), keys_ + c, row(), live4, sum);
        put_rows(n - i, s.d - c, sum, [&](int r) { return w_.dq.at(b_, h_, from + i + r) + c; });
      });
    add_outer(slopes_, l_row(), q_, row(), n, live4, s.d, of_keys_, row(), Stays<Real>{});
    add_outer(weights_, l_row(), g_, values_row(), n, live4, s.e, of_values_, values_row(), Stays<Real>{});
    __syncthreads();
  }

  const GradientWork<Real>& w_;
  const int64_t b_;
  const int h_, rows_;
  const Sight sight_;
  const int live_;
  Shared<Real> q_, g_, weights_, slopes_, keys_, values_, of_keys_, of_values_;
};

template <class Real>
static __global__ void __launch_bounds__(kThreads, kBlocks<Real>)
    unpack_gradient_kernel(const GradientWork<Real> w, int rows) {
  const int heads = w.run.sizes.heads;
  UnpackGradient<Real>(w, blockIdx.x / heads, static_cast<int>(blockIdx.x) % heads, rows)();
}

// Columns [from, from + 32) of `to` += of W, for `live` rows of `outputs` numbers; a warp has four rows at a time.
template <class Real>
__device__ void add_through(const Real* of, int outputs, const Rows<const Real>& weight, int width, int from, int live,
                            Real* to) {
  const int c = from + lane();
  for (int r = 4 * warp(); r < live && c < width; r += 4 * kWarps) {
    Real sum[4] = {};
    for (int o = 0; o < outputs; ++o) {
      const Real x = weight.at(0, 0, o)[c];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (r + i < live) sum[i] = fused(of[static_cast<int64_t>(r + i) * outputs + o], x, sum[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (r + i < live) to[static_cast<int64_t>(r + i) * width + c] += sum[i];
  }
}

// dY, by columns.
template <class Real>
static __global__ void __launch_bounds__(kThreads) packed_gradient_kernel(const GradientWork<Real> w) {
  const Sizes& s = w.run.sizes;
  const int blocks = column_blocks(s), from = static_cast<int>(blockIdx.x) % blocks * kColumns, width = s.width();
  const int64_t b = blockIdx.x / blocks;
  const int live = w.live(b);
  Real* const dy = w.rows(w.of_packed, b);
  add_through(w.rows(w.of_keys, b), width, w.run.keys.weight, width, from, live, dy);
  if (!s.tied) add_through(w.values_of(b), s.heads * s.e, w.run.values.weight, width, from, live, dy);
}

// dP, by columns.
template <class Real>
static __global__ void __launch_bounds__(kThreads) p_gradient_kernel(const GradientWork<Real> w) {
  const Sizes& s = w.run.sizes;
  const int blocks = column_blocks(s), from = static_cast<int>(blockIdx.x) % blocks * kColumns, width = s.width();
  const int64_t b = blockIdx.x / blocks;
  Real* const dp = w.rows(w.of_p, b);
  add_through(w.rows(w.of_pq, b), width, w.run.pq.weight, width, from, w.live(b), dp);
  if (!w.dp.data) return;
  __syncthreads();
  for (int r = warp(); r < s.l; r += kWarps)
    if (from + lane() < width)
      w.dp.at(b, 0, r)[from + lane()] = w.run.aux ? dp[static_cast<int64_t>(r) * width + from + lane()] : 0;
}

// The keys of a head of the pack attention.
template <class Real>
class PackGradient {
 public:
  static uint64_t bytes(const Sizes& s, int rows) {
    const int64_t d = Sizes::row(s.pack_d());
    return static_cast<uint64_t>((rows * (s.tied ? 1 : 2) + 3 * s.l4()) * d + 2 * rows * Sizes::row(s.l) + 3 * s.l4()) *
           sizeof(Real);
  }
  // rows: of a tile.
  __device__ PackGradient(const GradientWork<Real>& work, int64_t b, int head, int rows)
      : w_(work), b_(b), head_(head), rows_(rows), from_(head * work.run.sizes.pack_d()), live_(work.live(b)) {
    SharedParts parts;
    k_ = parts.take<Real>(rows * row());
    v_ = size().tied ? k_ : parts.take<Real>(rows * row());
    pq_ = parts.take<Real>(size().l4() * row());
    dy_ = parts.take<Real>(size().l4() * row());
    of_pq_ = parts.take<Real>(size().l4() * row());
    a_ = parts.take<Real>(rows * l_row());
    da_ = parts.take<Real>(rows * l_row());
    most_ = parts.take<Real>(size().l4());
    total_ = parts.take<Real>(size().l4());
    mean_ = parts.take<Real>(size().l4());
  }

  __device__ void operator()() {
    const Sizes& s = size();
    const int64_t fresh = Sight(w_.run.lengths, b_).fresh;
    for (int64_t j = fresh + warp(); j < w_.run.lengths.keys; j += kWarps)
#pragma unroll 1
      for (int c = lane(); c < s.pack_d(); c += 32) {
        if (w_.dpk.data) *number(w_.dpk, j, c) = 0;
        if (w_.dpv.data) *number(w_.dpv, j, c) = 0;
      }
    if (live_ == 0) return;
    begin();
    for (int64_t j = 0; j < fresh; j += rows_) take(j, static_cast<int>(fresh - j < rows_ ? fresh - j : rows_));
    Real* const to = w_.rows(w_.of_pq, b_) + from_;
#pragma unroll 1
    for (int r = warp(); r < live_; r += kWarps)
#pragma unroll 1
      for (int c = lane(); c < s.pack_d(); c += 32)
        to[static_cast<int64_t>(r) * s.width() + c] = of_pq_[r * row() + c] * w_.run.pack_scale;
  }

 private:
  __device__ const Sizes& size() const { return w_.run.sizes; }
  __device__ int row() const { return Sizes::row(size().pack_d()); }
  __device__ int l_row() const { return Sizes::row(size().l); }
  // Columns of this head, which those of the block need not share.
  template <class T>
  __device__ T* number(const Rows<T>& rows, int64_t j, int c) const {
    return rows.at(b_, (from_ + c) / size().d, j) + (from_ + c) % size().d;
  }

  __device__ void begin() {
    const Sizes& s = size();
    const int width = s.width();
    const Real *const known = w_.run.known(b_), *const y = w_.rows(w_.packed, b_) + from_;
    load_rows(w_.rows(w_.pq, b_) + from_, width, live_, s.pack_d(), pq_, row());
    load_rows(w_.rows(w_.of_packed, b_) + from_, width, live_, s.pack_d(), dy_, row());
    clear(of_pq_, s.l4() * row());
    __syncthreads();
    for (int r = warp(); r < live_; r += kWarps) {
      Real mean = 0;
      for (int c = lane(); c < s.pack_d(); c += 32)
        mean = fused(dy_[r * row() + c], y[static_cast<int64_t>(r) * width + c], mean);
      mean = sum_of_warp(mean);
      if (lane() != 0) continue;
      mean_[r] = mean;
      most_[r] = known[s.largest() + static_cast<int64_t>(head_) * s.l + r];
      total_[r] = known[s.totals() + static_cast<int64_t>(head_) * s.l + r];
    }
    __syncthreads();
  }

  __device__ void take(int64_t first, int n) {
    const Sizes& s = size();
    const int live4 = round4(live_), dp = s.pack_d();
    const auto fetch = [&](const Rows<const Real>& x, const Shared<Real>& to) {
      load(n, round4(n), dp, to, row(), [&](int j, int c) { return *number(x, first + j, c); });
    };
    fetch(w_.run.pk, k_);
    if (!s.tied) fetch(w_.run.pv, v_);
    __syncthreads();
    // A thread has the same numbers in both.
    for_dots<2>(k_, row(), round4(n), pq_, row(), live4, round4(dp), All{}, [&](int j, int r, Real y) {
      a_[j * l_row() + r] = r < live_ ? quotient(exponential(y - most_[r]), total_[r]) : Real{0};
    });
    for_dots<2>(v_, row(), round4(n), dy_, row(), live4, round4(dp), All{}, [&](int j, int r, Real y) {
      da_[j * l_row() + r] = r < live_ ? a_[j * l_row() + r] * (y - mean_[r]) : Real{0};
    });
    __syncthreads();
    add_outer(da_, l_row(), k_, row(), n, live4, dp, of_pq_, row(), Stays<Real>{});
    for_fours(n, dp, [&](int j, int c) {
      Four<Real> sum[4] = {};
      multiply<Real>(da_ + j * l_row(), l_row(), pq_ + c, row(), live4, sum);
      if (!s.tied) {
        put(w_.dpk, first, j, n, c, sum);
#pragma unroll
        for (int r = 0; r < 4; ++r) sum[r] = {};
      }
      multiply<Real>(a_ + j * l_row(), l_row(), dy_ + c, row(), live4, sum);
      put(s.tied ? w_.dpk : w_.dpv, first, j, n, c, sum);
    });
    __syncthreads();
  }
  __device__ void put(const Rows<Real>& to, int64_t first, int j, int n, int c, const Four<Real> (&x)[4]) const {
    if (!to.data) return;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (j + r >= n) continue;
      const Real numbers[4] = {x[r].x, x[r].y, x[r].z, x[r].w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (c + i < size().pack_d()) *number(to, first + j + r, c + i) = numbers[i];
    }
  }

  const GradientWork<Real>& w_;
  const int64_t b_;
  const int head_, rows_, from_, live_;
  Shared<Real> k_, v_, pq_, dy_, of_pq_, a_, da_, most_, total_, mean_;
};

template <class Real>
static __global__ void __launch_bounds__(kThreads, kBlocks<Real>)
    pack_gradient_kernel(const GradientWork<Real> w, int rows) {
  const int heads = w.run.sizes.pack_heads;
  PackGradient<Real>(w, blockIdx.x / heads, static_cast<int>(blockIdx.x) % heads, rows)();
}

// A head of a causal row.
template <class Real>
class RecurrenceGradient {
 public:
  static uint64_t bytes(const Sizes& s, int rows) {
    const int64_t d = Sizes::row(s.d), e = Sizes::row(s.e);
    return static_cast<uint64_t>(rows * (3 * d + (s.tied ? 1 : 2) * e) + s.l4() * (3 * d + e) +
                                 5 * rows * Sizes::row(s.l) + 2 * rows * (rows + 4)) *
               sizeof(Real) +
           rows * sizeof(int);
  }
  // rows: of a tile.
  __device__ RecurrenceGradient(const GradientWork<Real>& work, int64_t b, int h, int rows)
      : w_(work), b_(b), h_(h), rows_(rows), sight_(work.run.lengths, b), live_(work.live(b)) {
    const Sizes& s = size();
    SharedParts parts;
    q_ = parts.take<Real>(rows * row());
    g_ = parts.take<Real>(rows * values_row());
    pk_ = parts.take<Real>(rows * row());
    k_ = parts.take<Real>(rows * row());
    v_ = s.tied ? k_ : parts.take<Real>(rows * values_row());
    pq_ = parts.take<Real>(s.l4() * row());
    of_pq_ = parts.take<Real>(s.l4() * row());
    keys_ = parts.take<Real>(s.l4() * row());
    values_ = parts.take<Real>(s.l4() * values_row());
    a_ = parts.take<Real>(rows * l_row());
    rise_ = parts.take<Real>(rows * l_row());
    da_ = parts.take<Real>(rows * l_row());
    weights_ = parts.take<Real>(rows * l_row());
    slopes_ = parts.take<Real>(rows * l_row());
    scores_ = parts.take<Real>(rows * scores_row());
    given_ = parts.take<Real>(rows * scores_row());
    limit_ = parts.take<int>(rows);
  }

  __device__ void operator()() {
    const Sizes& s = size();
    const int64_t queries = live_ > 0 ? sight_.queries : 0, end = queries > 0 ? sight_.seen(queries - 1) : 0;
    clear(w_.dq, b_, h_, queries, w_.run.lengths.queries, s.d);
    for (const Rows<Real>* rows : {&w_.dk, &w_.dpk}) clear(*rows, b_, h_, end, w_.run.lengths.keys, s.d);
    clear(w_.dv, b_, h_, end, w_.run.lengths.keys, s.e);
    if (live_ == 0) return;
    const int64_t at = static_cast<int64_t>(h_) * s.d;
    load_rows(w_.rows(w_.pq, b_) + at, s.width(), live_, s.d, pq_, row());
    clear(of_pq_, s.l4() * row());
    forth();
    back();
    Real* const to = w_.rows(w_.of_pq, b_) + at;
#pragma unroll 1
    for (int r = warp(); r < live_; r += kWarps)
#pragma unroll 1
      for (int c = lane(); c < s.d; c += 32)
        to[static_cast<int64_t>(r) * s.width() + c] = of_pq_[r * row() + c] * w_.run.pack_scale;
  }

 private:
  // Queries [from, from + n), all of which see the keys before `first`, and some of the `keys` from there on.
  struct Block {
    int64_t from, first;
    int n, keys;
  };
  __device__ Block block(int64_t from) const {
    const int n = static_cast<int>(sight_.queries - from < rows_ ? sight_.queries - from : rows_);
    const int64_t end = sight_.seen(from + n - 1), begin = end > rows_ ? end - rows_ : 0,
                  first = from > 0 ? sight_.seen(from - 1) : begin;
    return {from, first, n, static_cast<int>(end - first)};
  }
  __device__ const Sizes& size() const { return w_.run.sizes; }
  __device__ int row() const { return Sizes::row(size().d); }
  __device__ int values_row() const { return Sizes::row(size().e); }
  __device__ int l_row() const { return Sizes::row(size().l); }
  __device__ int live4() const { return round4(live_); }
  __device__ int scores_row() const { return rows_ + 4; }
  __device__ Pairs<Real> pairs() const { return {scores_row(), limit_}; }
  __device__ Real* kept(int64_t i) const {
    return w_.scores + ((b_ * size().heads + h_) * w_.run.lengths.queries + i) * 2 * size().l;
  }

  // Keys, values, A and its slope of n keys; a whole block.
  __device__ void load_keys(int64_t first, int n) {
    const Sizes& s = size();
    load_head(w_.run.pk, b_, h_, first, n, s.d, pk_, row());
    load_head(w_.run.k, b_, h_, first, n, s.d, k_, row());
    if (!s.tied) load_head(w_.run.v, b_, h_, first, n, s.e, v_, values_row());
    __syncthreads();
    for_dots<2>(pk_, row(), round4(n), pq_, row(), live4(), round4(s.d), All{}, [&](int j, int r, Real y) {
      a_[j * l_row() + r] = r < live_ ? activate(s.map, y) : Real{0};
      rise_[j * l_row() + r] = r < live_ ? slope_of(s.map, y) : Real{0};
    });
  }
  __device__ void load_queries(const Block& q) {
    const Sizes& s = size();
    load_head(w_.run.q, b_, h_, q.from, q.n, s.d, q_, row());
    load_head(w_.given, b_, h_, q.from, q.n, s.e, g_, values_row());
    if (const int i = static_cast<int>(threadIdx.x); i < rows_)
      limit_[i] = static_cast<int>(sight_.seen(q.from + (i < q.n ? i : q.n - 1)) - q.first);
  }
  // to_ij = x_i . y_j of the queries and keys of a block that see each other.
  __device__ void pair(const Block& q, const Shared<Real>& x, const Shared<Real>& y, int x_row, int depth,
                       const Shared<Real>& to) {
    for_dots<4>(
        x, x_row, round4(q.n), y, x_row, round4(q.keys), depth, [&](int i, int j) { return j < limit_[i]; },
        [&](int i, int j, Real sum) { to[i * scores_row() + j] = sum; });
  }
  __device__ void clear_sums() {
    clear(keys_, size().l4() * row());
    clear(values_, size().l4() * values_row());
    __syncthreads();
  }

  // Weights, gradients of logits and dq, with the sums of A k^T and A v^T.
  __device__ void forth() {
    const Sizes& s = size();
    const Shared<Real> values = s.tied ? keys_ : values_;
    clear_sums();
    int64_t done = 0;
    for (int64_t from = 0; from < sight_.queries;) {
      // The keys before a block's are summed first.
      const Block q = block(from);
      const int64_t left = q.first - done;
      const int n = static_cast<int>(left == 0 ? q.keys : left < rows_ ? left : rows_);
      load_keys(done, n);
      if (left == 0) {
        weigh_block(q, values);
        from += rows_;
      }
      __syncthreads();
      add_outer(a_, l_row(), k_, row(), n, live4(), s.d, keys_, row(), Stays<Real>{});
      if (!s.tied) add_outer(a_, l_row(), v_, values_row(), n, live4(), s.e, values_, values_row(), Stays<Real>{});
      __syncthreads();
      done += n;
    }
  }
  // The queries of a block, whose keys are loaded.
  __device__ void weigh_block(const Block& q, const Shared<Real>& values) {
    const Sizes& s = size();
    const int64_t from = q.from;
    load_queries(q);
    __syncthreads();
    pair(q, q_, k_, row(), round4(s.d), scores_);
    pair(q, g_, v_, values_row(), round4(s.e), given_);
    for_dots<2>(q_, row(), round4(q.n), keys_, row(), live4(), round4(s.d), All{},
                [&](int i, int r, Real y) { weights_[i * l_row() + r] = y; });
    for_dots<2>(g_, values_row(), round4(q.n), values, values_row(), live4(), round4(s.e), All{},
                [&](int i, int r, Real y) { slopes_[i * l_row() + r] = y; });
    __syncthreads();
    pairs().add_scores(scores_, round4(q.n), a_, weights_, l_row(), live4());
    pairs().add_scores(given_, round4(q.n), a_, slopes_, l_row(), live4());
    __syncthreads();
    const auto seen = [&](int i) { return static_cast<Real>(sight_.seen(from + i)); };
    weigh(
        weights_, l_row(), q.n, live_, live4(), [&](int i) { return w_.run.scale / seen(i); }, Stays<Real>{});
    differentiate(
        weights_, slopes_, l_row(), q.n, live_, [&](int i) { return w_.run.scale / (seen(i) * seen(i)); }, seen);
    __syncthreads();
    store_rows(weights_, l_row(), q.n, live_, kept(from), 2 * s.l);
    store_rows(slopes_, l_row(), q.n, live_, kept(from) + s.l, 2 * s.l);
    pair(q, slopes_, a_, l_row(), live4(), scores_);
    __syncthreads();
    if (w_.dq.data)
      for_fours(q.n, s.d, [&](int i, int c) {
        Four<Real> sum[4] = {};
        multiply<Real>(slopes_ + i * l_row(), l_row(), keys_ + c, row(), live4(), sum);
        pairs().multiply_seen(scores_, i, k_ + c, row(), sum);
        put_rows(q.n - i, s.d - c, sum, [&](int r) { return w_.dq.at(b_, h_, from + i + r) + c; });
      });
  }

  // Gradients of keys, with the sums R' and R in the places of the others.
  __device__ void back() {
    const Sizes& s = size();
    clear_sums();
    const auto restore = [&](const Real* x, int n, const Shared<Real>& to) {
      load(n, round4(n), live_, to, l_row(), [&](int i, int r) { return x[i * int64_t{2} * s.l + r]; });
    };
    // Blocks, then the keys before them.
    int64_t first = 0, end = 0;
    for (int64_t from = (sight_.queries + rows_ - 1) / rows_ * rows_; from > 0 || first < end;) {
      const bool reads = from > 0;
      Block q{0, first, 0, static_cast<int>(end - first < rows_ ? end - first : rows_)};
      if (reads) {
        from -= rows_;
        q = block(from);
        end = q.first;
      } else {
        first += q.keys;
      }
      load_keys(q.first, q.keys);
      if (reads) {
        load_queries(q);
        restore(kept(from), q.n, weights_);
        restore(kept(from) + s.l, q.n, slopes_);
      }
      __syncthreads();
      give(q);
      if (!reads) continue;
      add_outer(slopes_, l_row(), q_, row(), q.n, live4(), s.d, keys_, row(), Stays<Real>{});
      add_outer(weights_, l_row(), g_, values_row(), q.n, live4(), s.e, values_, values_row(), Stays<Real>{});
      __syncthreads();
    }
  }

  // Gradients of the keys of a block, through the sums and its own queries; a whole block.
  __device__ void give(const Block& q) {
    const Sizes& s = size();
    pair(q, q_, k_, row(), round4(s.d), scores_);
    pair(q, g_, v_, values_row(), round4(s.e), given_);
    // A thread has the same numbers in both.
    for_dots<2>(k_, row(), round4(q.keys), keys_, row(), live4(), round4(s.d), All{},
                [&](int j, int r, Real y) { da_[j * l_row() + r] = y; });
    for_dots<2>(v_, values_row(), round4(q.keys), values_, values_row(), live4(), round4(s.e), All{},
                [&](int j, int r, Real y) { da_[j * l_row() + r] += y; });
    __syncthreads();
    const int fours = live4() / 4;
#pragma unroll 1
    for (int unit = static_cast<int>(threadIdx.x); unit < q.keys * fours; unit += kThreads) {
      const int j = unit / fours, r = unit % fours * 4;
      const Shared<Real> at = da_ + (j * l_row() + r);
      const Four<Real> rise = four<Real>(rise_ + (j * l_row() + r));
      Four<Real> sum = four<Real>(at);
      for (int i = 0; i < q.n; ++i)
        if (j < limit_[i]) {
          add<Real>(sum, scores_[i * scores_row() + j], four<Real>(slopes_ + (i * l_row() + r)));
          add<Real>(sum, given_[i * scores_row() + j], four<Real>(weights_ + (i * l_row() + r)));
        }
      as<Four<Real>>(at)[0] = {sum.x * rise.x, sum.y * rise.y, sum.z * rise.z, sum.w * rise.w};
    }
    __syncthreads();
    pair(q, slopes_, a_, l_row(), live4(), scores_);
    pair(q, weights_, a_, l_row(), live4(), given_);
    add_outer(da_, l_row(), pk_, row(), q.keys, live4(), s.d, of_pq_, row(), Stays<Real>{});
    if (w_.dpk.data)
      for_fours(q.keys, s.d, [&](int j, int c) {
        Four<Real> sum[4] = {};
        multiply<Real>(da_ + j * l_row(), l_row(), pq_ + c, row(), live4(), sum);
        put_rows(q.keys - j, s.d - c, sum, [&](int r) { return w_.dpk.at(b_, h_, q.first + j + r) + c; });
      });
    __syncthreads();
    // Of keys, which tied are values too, then of values.
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      const bool keys = part == 0, values = part == 1 || s.tied;
      const Rows<Real>& to = keys ? w_.dk : w_.dv;
      if (!to.data) continue;
      for_fours(q.keys, keys ? s.d : s.e, [&](int j, int c) {
        Four<Real> sum[4] = {};
        if (keys) {
          multiply<Real>(a_ + j * l_row(), l_row(), keys_ + c, row(), live4(), sum);
          add_seeing(q, scores_, j, q_ + c, row(), sum);
        }
        if (values) {
          multiply<Real>(a_ + j * l_row(), l_row(), values_ + c, values_row(), live4(), sum);
          add_seeing(q, given_, j, g_ + c, values_row(), sum);
        }
        put_rows(q.keys - j, (keys ? s.d : s.e) - c, sum, [&](int r) { return to.at(b_, h_, q.first + j + r) + c; });
      });
    }
    __syncthreads();
  }
  // sum += what the queries of a block that see keys j to j + 3 give them, four numbers each.
  __device__ void add_seeing(const Block& q, const Shared<Real>& scores, int j, const Shared<Real>& queries,
                             int queries_row, Four<Real> (&sum)[4]) const {
#pragma unroll 1
    for (int i = 0; i < q.n; ++i) {
      if (limit_[i] <= j) continue;
      const Four<Real> x = four<Real>(queries + i * queries_row);
#pragma unroll
      for (int r = 0; r < 4; ++r)
        if (j + r < limit_[i]) add<Real>(sum[r], scores[i * scores_row() + j + r], x);
    }
  }

  const GradientWork<Real>& w_;
  const int64_t b_;
  const int h_, rows_;
  const Sight sight_;
  const int live_;
  Shared<Real> q_, g_, pk_, k_, v_, pq_, of_pq_, keys_, values_, a_, rise_, da_, weights_, slopes_, scores_, given_;
  Shared<int> limit_;
};

template <class Real>
static __global__ void __launch_bounds__(kThreads, kBlocks<Real>)
    causal_gradient_kernel(const GradientWork<Real> w, int rows) {
  const int heads = w.run.sizes.heads;
  RecurrenceGradient<Real>(w, blockIdx.x / heads, static_cast<int>(blockIdx.x) % heads, rows)();
}

// Learned of y = x W^T + bias.
template <class Real>
struct Lesson {
  const Real* of;  // the gradient of y, l rows of a batch row
  int outputs;
  Rows<const Real> x;
  Rows<Real> weight;
  Real* bias;
};
// A block has 32 outputs and 32 inputs; the bias is the weight of one input more, which is 1.
template <class Real>
static __global__ void __launch_bounds__(kThreads) learn_kernel(const GradientWork<Real> w, const Lesson<Real> lesson) {
  constexpr int kOwn = kColumns / kWarps;
  const Sizes& s = w.run.sizes;
  const int width = s.width(), blocks = (width + kColumns) / kColumns,
            c = static_cast<int>(blockIdx.x) % blocks * kColumns + lane(),
            first = static_cast<int>(blockIdx.x) / blocks * kColumns + warp();
  Real sums[kOwn] = {};
  for (int64_t b = 0; b < w.batch; ++b) {
    const int live = w.live(b);
    for (int r = 0; r < live; ++r) {
      const Real x = c < width ? lesson.x.at(b, 0, r)[c] : Real{1};
      const Real* const of = lesson.of + (b * s.l + r) * lesson.outputs;
#pragma unroll
      for (int own = 0; own < kOwn; ++own)
        if (first + own * kWarps < lesson.outputs) sums[own] = fused(of[first + own * kWarps], x, sums[own]);
    }
  }
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
    const int o = first + own * kWarps;
    if (o >= lesson.outputs) continue;
    if (c < width && lesson.weight.data) lesson.weight.at(0, 0, o)[c] += sums[own];
    if (c == width && lesson.bias) lesson.bias[o] += sums[own];
  }
}

// to += the sum over batch rows of `rows` times `width` numbers each, `next` from one batch row to the next.
template <class Real>
static __global__ void __launch_bounds__(kThreads)
    sum_kernel(const Real* from, int64_t next, int64_t batch, int rows, int width, const Rows<Real> to) {
  const int64_t x = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (x >= static_cast<int64_t>(rows) * width) return;
  Real sum = 0;
  for (int64_t b = 0; b < batch; ++b) sum += from[b * next + x];
  to.at(0, 0, x / width)[x % width] += sum;
}

}  // namespace luna::cuda
