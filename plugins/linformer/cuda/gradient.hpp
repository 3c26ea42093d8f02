// linformer's gradient on CUDA; gradient.hpp has the equations.
//
// Of queries that all see the same keys it is that of softmax attention over Kbar and Vbar, which gives dq, R and T;
// then a block makes 32 x 32 numbers of dk, dv or the gradients of E and F, each of these a chain over batch rows and
// heads in their order.  Prefixes are one block's walk, which leaves in scratch the scores of a head's queries and what
// its keys give E and F.
#pragma once
#include <attnkit/kernels/cuda/attend_gradient.hpp>

#include "run.hpp"

namespace linformer::cuda {

namespace softmax = attnkit::cuda::attend;

template <class Real>
struct GradientWork {
  Work<Real> run;
  Rows<const Real> given;
  Rows<Real> dq, dk, dv;    // without data where they are skipped
  Rows<Real> of_matrix[2];  // of E and F, of E alone where it serves both
  Real* sums;               // R [rank][D], then T [rank][E], of every head
  Real* scores;             // of prefixes: p and ds [rank] of every query
  Real* learned;            // of prefixes: what a head gives each matrix, [rank][keys]
  int64_t batch;
  int matrices;  // that a head has

  __device__ Real* keys(int64_t b, int h) const {
    const Sizes& s = run.sizes;
    return sums + (b * s.heads + h) * s.rank * (s.d + s.e);
  }
  __device__ Real* values(int64_t b, int h) const {
    return keys(b, h) + static_cast<int64_t>(run.sizes.rank) * run.sizes.d;
  }
  __device__ Real* learned_of(int64_t b, int h, int matrix) const {
    return learned + ((b * run.sizes.heads + h) * matrices + matrix) * run.sizes.rank * run.lengths.keys;
  }
};

// dk or dv of keys [from, to), at most 32, in the columns of a tile, and zeros up to `end`; a whole block.
template <class Real>
__device__ void give(const GradientWork<Real>& w, const Operands<Real>& operands, int64_t b, int h, int64_t from,
                     int64_t to, int64_t end, int tile) {
  const Columns columns(w.run.sizes, tile);
  const Rows<Real>& out = columns.of_keys ? w.dk : w.dv;
  if (!out.data) return;
  const Rows<const Real>& by = columns.of_keys ? w.run.keys_by : w.run.values_by;
  const Real* const of = columns.of_keys ? w.keys(b, h) : w.values(b, h);
  Real sums[kOwn] = {};
  add_product<false, false>(
      operands, w.run.sizes.rank, [&](int j, int64_t t) { return from + j < to ? by.at(0, h, t)[from + j] : Real{0}; },
      [&](int64_t t, int c) {
        return columns.first + c < columns.width ? of[t * columns.width + columns.first + c] : Real{0};
      },
      sums);
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
    const int64_t j = from + warp() + own * kWarps;
    if (j < end && columns.first + lane() < columns.width)
      out.at(b, h, j)[columns.first + lane()] = j < to ? sums[own] : Real{0};
  }
}

template <class Real>
__device__ void clear(const Rows<Real>& rows, int64_t b, int h, int64_t from, int64_t to, int width) {
  if (!rows.data) return;
  for (int64_t unit = from * width + threadIdx.x; unit < to * width; unit += kThreads)
    rows.at(b, h, unit / width)[unit % width] = 0;
}

// Finds what keys [from, to), at most 32, of a head give 32 mixtures of a matrix; a whole block.
template <class Real>
__device__ void learn(const GradientWork<Real>& w, const Operands<Real>& operands, int64_t b, int h, int64_t from,
                      int64_t to, int matrix, int first, Real (&sums)[kOwn]) {
  const auto add = [&](const Real* of, const Rows<const Real>& x, int width) {
    add_product<true, true>(
        operands, width,
        [&](int t, int64_t c) { return first + t < w.run.sizes.rank ? of[(first + t) * int64_t{width} + c] : Real{0}; },
        [&](int64_t c, int j) { return from + j < to ? x.at(b, h, from + j)[c] : Real{0}; }, sums);
  };
  if (matrix == 0) add(w.keys(b, h), w.run.k, w.run.sizes.d);
  if (matrix == w.matrices - 1) add(w.values(b, h), w.run.v, w.run.sizes.e);
}

template <class Real>
static __global__ void __launch_bounds__(kThreads) give_kernel(const GradientWork<Real> w) {
  ATTNKIT_SHARED(Real, left, kTile * kRow);
  ATTNKIT_SHARED(Real, right, kTile * kRow);
  const Sizes& s = w.run.sizes;
  const int column = static_cast<int>(blockIdx.x) % s.columns();
  const int64_t tiles = (w.run.lengths.keys + kTile - 1) / kTile, unit = blockIdx.x / s.columns(),
                from = unit % tiles * kTile, pair = unit / tiles, b = pair / s.heads;
  const int h = static_cast<int>(pair % s.heads);
  const int64_t fresh = Sight(w.run.lengths, b).fresh,
                end = from + kTile < w.run.lengths.keys ? from + kTile : w.run.lengths.keys;
  give<Real>(w, {left, right}, b, h, from, end < fresh ? end : fresh, end, column);
}

// Adds what all heads gave to 32 mixtures and 32 keys of a matrix.
template <class Real, bool kPrefix>
static __global__ void __launch_bounds__(kThreads, 4) learn_kernel(const GradientWork<Real> w) {
  ATTNKIT_SHARED(Real, left, kTile * kRow);
  ATTNKIT_SHARED(Real, right, kTile * kRow);
  const Sizes& s = w.run.sizes;
  const int64_t tiles = (w.run.lengths.keys + kTile - 1) / kTile, unit = blockIdx.x / s.rows(),
                from = unit % tiles * kTile;
  const int first = static_cast<int>(blockIdx.x) % s.rows() * kTile,
            matrix = static_cast<int>(unit / tiles) % w.matrices, head = static_cast<int>(unit / tiles) / w.matrices;
  const Rows<Real>& out = w.of_matrix[matrix];
  if (!out.data) return;
  const int64_t j = from + lane();
  Real all[kOwn] = {};
  for (int64_t b = 0; b < w.batch; ++b) {
    const int64_t fresh = Sight(w.run.lengths, b).fresh, end = from + kTile < fresh ? from + kTile : fresh;
    if (end <= from) continue;
    for (int h = head; h < (out.head != 0 ? head + 1 : s.heads); ++h) {
      Real sums[kOwn] = {};
      if constexpr (!kPrefix) learn<Real>(w, {left, right}, b, h, from, end, matrix, first, sums);
#pragma unroll
      for (int own = 0; own < kOwn; ++own) {
        const int t = first + warp() + own * kWarps;
        if (j >= end || t >= s.rank) continue;
        if constexpr (kPrefix) sums[own] = w.learned_of(b, h, matrix)[t * w.run.lengths.keys + j];
        all[own] += sums[own];
      }
    }
  }
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
    const int t = first + warp() + own * kWarps;
    if (j < w.run.lengths.keys && t < s.rank) out.at(0, head, t)[j] += all[own];
  }
}

// The walk over the prefixes of a head; a whole block.
template <class Real>
class PrefixGradient {
 public:
  __device__ PrefixGradient(const GradientWork<Real>& w, const Operands<Real>& operands, const Shared<Real>& of_warps,
                            int64_t b, int h)
      : w_(w), operands_(operands), of_warps_(of_warps), b_(b), h_(h), sight_(w.run.lengths, b) {}

  __device__ void operator()() {
    const Sizes& s = w_.run.sizes;
    int64_t known = 0;
    for (int64_t i = 0; i < sight_.queries; ++i) {
      const int64_t seen = sight_.seen(i);
      for (int tile = 0; seen > known && tile < s.tiles(); ++tile)
        append(w_.run, operands_, b_, h_, 0, known, seen, tile);
      if (seen > known) known = seen;
      __syncthreads();
      if (known > 0)
        weigh(i);
      else
        clear(w_.dq, b_, h_, i, i + 1, s.d);
    }
    clear(w_.dq, b_, h_, sight_.queries, w_.run.lengths.queries, s.d);
    for (int64_t x = threadIdx.x; x < int64_t{s.rank} * (s.d + s.e); x += kThreads) w_.keys(b_, h_)[x] = 0;
    __syncthreads();
    int64_t end = sight_.fresh;
    for (int64_t i = sight_.queries - 1, n = 1; i >= 0 && sight_.seen(i) > 0; i -= n) {
      give_all(sight_.seen(i), end);
      end = sight_.seen(i);
      for (n = 1; n <= i && sight_.seen(i - n) == end;) ++n;
      sum(i + 1 - n, i + 1);
    }
    give_all(0, end);
    clear(w_.dk, b_, h_, sight_.fresh, w_.run.lengths.keys, s.d);
    clear(w_.dv, b_, h_, sight_.fresh, w_.run.lengths.keys, s.e);
  }

 private:
  __device__ Real* scores(int64_t i) const {
    return w_.scores + ((b_ * w_.run.sizes.heads + h_) * w_.run.lengths.queries + i) * 2 * w_.run.sizes.rank;
  }

  // p, ds and dq of a query.
  __device__ void weigh(int64_t i) {
    const Sizes& s = w_.run.sizes;
    const Real *const q = w_.run.q.at(b_, h_, i), *const g = w_.given.at(b_, h_, i);
    const Real *const keys = w_.run.head(b_, h_), *const values = w_.run.values(b_, h_);
    Real *const p = scores(i), *const ds = p + s.rank;
    Real top = kLeast<Real>, total = 0, mean = 0;
    for (int t = static_cast<int>(threadIdx.x); t < s.rank; t += kThreads) {
      Real score = 0, given = 0;
      for (int c = 0; c < s.d; ++c) score = fused(q[c] * w_.run.scale, keys[int64_t{c} * s.lanes + t], score);
      for (int c = 0; c < s.e; ++c) given = fused(g[c], values[int64_t{t} * s.e + c], given);
      p[t] = score;
      ds[t] = given;
      top = larger(top, score);
    }
    for (int bits = 16; bits > 0; bits /= 2) top = larger(top, __shfl_xor_sync(kAll, top, bits));
    if (lane() == 0) of_warps_[warp()] = top;
    __syncthreads();
    for (int x = 0; x < kWarps; ++x) top = larger(top, of_warps_[x]);
    for (int t = static_cast<int>(threadIdx.x); t < s.rank; t += kThreads) {
      p[t] = exponential(p[t] - top);
      total += p[t];
      mean = fused(p[t], ds[t], mean);
    }
    total = sum_of_warp(total);
    mean = sum_of_warp(mean);
    if (lane() == 0) {
      of_warps_[kWarps + warp()] = total;
      of_warps_[2 * kWarps + warp()] = mean;
    }
    __syncthreads();
    total = mean = 0;
    for (int x = 0; x < kWarps; ++x) {
      total += of_warps_[kWarps + x];
      mean += of_warps_[2 * kWarps + x];
    }
    mean = quotient(mean, total);
    for (int t = static_cast<int>(threadIdx.x); t < s.rank; t += kThreads) {
      p[t] = quotient(p[t], total);
      ds[t] = w_.run.scale * p[t] * (ds[t] - mean);
    }
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); w_.dq.data && c < s.d; c += kThreads) {
      Real x = 0;
      for (int t = 0; t < s.rank; ++t) x = fused(ds[t], keys[int64_t{c} * s.lanes + t], x);
      w_.dq.at(b_, h_, i)[c] = x;
    }
    __syncthreads();
  }

  // Adds queries [from, to) to R and T.
  __device__ void sum(int64_t from, int64_t to) {
    const Sizes& s = w_.run.sizes;
    const auto add = [&](Real* sums, int of_scores, const Rows<const Real>& rows, int width) {
      for (int64_t x = threadIdx.x; x < int64_t{s.rank} * width; x += kThreads) {
        Real sum = sums[x];
        for (int64_t i = from; i < to; ++i)
          sum = fused(scores(i)[of_scores + x / width], rows.at(b_, h_, i)[x % width], sum);
        sums[x] = sum;
      }
    };
    add(w_.keys(b_, h_), s.rank, w_.run.q, s.d);
    add(w_.values(b_, h_), 0, w_.given, s.e);
    __syncthreads();
  }

  // The gradients of keys [from, to) and of their columns, which R and T are complete for.
  __device__ void give_all(int64_t from, int64_t to) {
    const Sizes& s = w_.run.sizes;
    for (; from < to; from += kTile) {
      const int64_t end = to - from < kTile ? to : from + kTile;
      for (int tile = 0; tile < s.columns(); ++tile) give(w_, operands_, b_, h_, from, end, end, tile);
      for (int unit = 0; unit < s.rows() * w_.matrices; ++unit) {
        const int matrix = unit / s.rows(), first = unit % s.rows() * kTile;
        if (!w_.of_matrix[matrix].data) continue;
        Real sums[kOwn] = {};
        learn(w_, operands_, b_, h_, from, end, matrix, first, sums);
#pragma unroll
        for (int own = 0; own < kOwn; ++own) {
          const int t = first + warp() + own * kWarps;
          if (t < s.rank && from + lane() < end)
            w_.learned_of(b_, h_, matrix)[t * w_.run.lengths.keys + from + lane()] = sums[own];
        }
      }
    }
    __syncthreads();
  }

  const GradientWork<Real>& w_;
  const Operands<Real> operands_;
  const Shared<Real> of_warps_;
  const int64_t b_;
  const int h_;
  const Sight sight_;
};

template <class Real>
static __global__ void __launch_bounds__(kThreads, 1) prefix_gradient_kernel(const GradientWork<Real> w) {
  ATTNKIT_SHARED(Real, left, kTile * kRow);
  ATTNKIT_SHARED(Real, right, kTile * kRow);
  ATTNKIT_SHARED(Real, of_warps, 3 * kWarps);
  const int heads = w.run.sizes.heads;
  PrefixGradient<Real>(w, {left, right}, of_warps, blockIdx.x / heads, static_cast<int>(blockIdx.x) % heads)();
}

}  // namespace linformer::cuda
