// nystromformer's gradient on CUDA; gradient.hpp has the equations.
//
// Of the softmaxes over keys and over landmarks it is that of softmax attention, of the matrices between them products
// as in a run.  What is left is the softmax of A, the way from landmarks to the rows of their segments, and the filter,
// whose gradient is added up in the order of the batch rows.
#pragma once
#include "run.hpp"

namespace nystromformer::cuda {

// From the gradients of Z_0, transposed, and what the steps gave A, transposed, that of the scores, transposed.
struct Slope {
  Squares of;
  const double* given;
  double* to;
};

static __global__ void __launch_bounds__(kThreads) end_kernel(const Slope w) {
  ATTNKIT_SHARED(double, parts, kWarps);
  const int64_t pair = blockIdx.x, l = w.of.landmarks, begin = pair * l * l;
  if (w.of.own[pair / w.of.heads] == 0) return;
  const double *const a = w.of.a + begin, *const z = w.of.z + begin, *const given = w.given + begin;
  double* const to = w.to + begin;
  int column = 0;
  const double most = w.of.largest(pair, column);
  double of_sum = 0;  // the gradient of the largest column sum
  for (int64_t x = threadIdx.x; x < l * l; x += kThreads) of_sum -= given[x] * z[x % l * l + x / l] / most;
  of_sum = sum_of_warp(of_sum);
  if (lane() == 0) parts[warp()] = of_sum;
  __syncthreads();
  of_sum = 0;
  for (int x = 0; x < kWarps; ++x) of_sum += parts[x];
  for (int64_t i = warp(); i < l; i += kWarps) {
    const auto slope = [&](int64_t j) { return to[j * l + i] + given[i * l + j] / most + (j == column ? of_sum : 0); };
    double mean = 0;
    for (int64_t j = lane(); j < l; j += 32) mean = fma(a[i * l + j], slope(j), mean);
    mean = sum_of_warp(mean);
    for (int64_t j = lane(); j < l; j += 32) to[j * l + i] = a[i * l + j] * (slope(j) - mean) * w.of.scale;
  }
}

// The gradient of a landmark goes to the rows of its segment; where there are none, that of keys and values in their
// place.
template <class Real>
struct Spread {
  Sizes sizes;
  Rows<Real> dq, dk, dv;  // without data where they are skipped
  Lengths lengths;
  int rows;  // of a head in what follows
  const Real *q, *k, *u;
  int tiles;
};

template <class Real>
static __global__ void __launch_bounds__(kThreads) spread_kernel(const Spread<Real> w) {
  const Sizes& s = w.sizes;
  const int pair = static_cast<int>(blockIdx.x) / w.tiles, h = pair % s.heads;
  const int64_t b = pair / s.heads, first = static_cast<int64_t>(blockIdx.x) % w.tiles * kConvolved;
  const Sight sight(w.lengths, b);
  const int64_t segment = s.segment(sight);
  const auto visit = [&](const Rows<Real>& to, int64_t rows, int width, const auto& value) {
    if (!to.data) return;
    const int64_t n = rows - first < kConvolved ? rows - first : kConvolved;
    for (int64_t x = threadIdx.x; x < n * width; x += kThreads) {
      const int64_t i = first + x / width, c = x % width;
      Real* const at = to.at(b, h, i) + c;
      *at = value(i, c, *at);
    }
  };
  const auto of = [&](const Real* all, int64_t row, int width, int64_t c) {
    return all[(static_cast<int64_t>(pair) * w.rows + row) * width + c];
  };
  if (segment > 0) {
    const Real part = reciprocal(static_cast<Real>(segment));
    visit(w.dq, sight.queries, s.d,
          [&](int64_t i, int64_t c, Real x) { return fused(of(w.q, i / segment, s.d, c), part, x); });
    visit(w.dk, sight.fresh, s.d,
          [&](int64_t j, int64_t c, Real x) { return fused(of(w.k, j / segment, s.d, c), part, x); });
    return;
  }
  const auto own = [&](const Real* all, int width) {
    return [=](int64_t j, int64_t c, Real) {
      return j < sight.fresh && sight.queries > 0 ? of(all, j, width, c) : Real{0};
    };
  };
  visit(w.dk, w.lengths.keys, s.d, own(w.k, s.d));
  visit(w.dv, w.lengths.keys, s.e, own(w.u, s.e));
}

constexpr int kTaps = 8;  // of the filter, a thread's

// The gradient of the filter: `in` are the values, `given` the gradient of the outputs.
template <class Real>
struct Lesson {
  Convolution<Real> of;
  Rows<const Real> given;
  Real* sums;  // [B][H][kernel]
  Rows<Real> to;
  int64_t batch;
};

// Sums of a head of a batch row for some taps: a thread walks rows of one column with the values around them.
template <class Real>
static __global__ void __launch_bounds__(kThreads) learn_kernel(const Lesson<Real> w) {
  ATTNKIT_SHARED(Real, parts, kWarps * kTaps);
  const Convolution<Real>& of = w.of;
  const int groups = (of.kernel + kTaps - 1) / kTaps, pair = static_cast<int>(blockIdx.x) / groups,
            tap = static_cast<int>(blockIdx.x) % groups * kTaps, h = pair % of.heads;
  const int64_t b = pair / of.heads;
  const Sight sight(of.lengths, b);
  Real sums[kTaps] = {};
  const int64_t units = (sight.queries + kConvolved - 1) / kConvolved * of.width;
  for (int64_t unit = threadIdx.x; unit < units; unit += kThreads) {
    const int64_t c = unit % of.width, from = unit / of.width * kConvolved, shift = tap - of.kernel / 2,
                  end = from + kConvolved < sight.queries ? from + kConvolved : sight.queries;
    const auto value = [&](int64_t j) { return j >= 0 && j < sight.fresh ? of.in.at(b, h, j)[c] : Real{0}; };
    Real around[kTaps];  // from row i + shift on
#pragma unroll
    for (int u = 1; u < kTaps; ++u) around[u] = value(from + shift + u - 1);
    for (int64_t i = from; i < end; ++i) {
      const Real g = w.given.at(b, h, i)[c];
#pragma unroll
      for (int u = 0; u + 1 < kTaps; ++u) around[u] = around[u + 1];
      around[kTaps - 1] = value(i + shift + kTaps - 1);
#pragma unroll
      for (int u = 0; u < kTaps; ++u)  // a gradient that is not finite is no part of a tap that leads nowhere
        if (i + shift + u >= 0 && i + shift + u < sight.fresh) sums[u] = fused(g, around[u], sums[u]);
    }
  }
#pragma unroll
  for (int u = 0; u < kTaps; ++u) {
    sums[u] = sum_of_warp(sums[u]);
    if (lane() == 0) parts[warp() * kTaps + u] = sums[u];
  }
  __syncthreads();
  const int u = static_cast<int>(threadIdx.x);
  if (u >= kTaps || tap + u >= of.kernel) return;
  Real sum = 0;
  for (int x = 0; x < kWarps; ++x) sum += parts[x * kTaps + u];
  w.sums[static_cast<int64_t>(pair) * of.kernel + tap + u] = sum;
}

template <class Real>
static __global__ void __launch_bounds__(kThreads) collect_kernel(const Lesson<Real> w) {
  const int64_t heads = w.of.heads, kernel = w.of.kernel,
                at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= heads * kernel) return;
  Real sum = 0;
  for (int64_t b = 0; b < w.batch; ++b) sum += w.sums[b * heads * kernel + at];
  w.to.at(0, 0, at / kernel)[at % kernel] += sum;
}

}  // namespace nystromformer::cuda
