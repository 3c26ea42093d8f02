// The gradients of s4d's learned tensors on CUDA; gradient.hpp has the equations.
//
// A lane runs two states of a channel and their slopes over one batch row, in f64, since f32 steps would be off by as
// much as slopes are longer than states.  Their sums go to scratch, where a warp adds those of its channel's batch rows
// up in their order.
#pragma once
#include "scan.hpp"

namespace s4d::cuda {

constexpr int kLearners = 128, kPairs = 2;                     // threads of a block; states of a lane
constexpr int kOfBlock = kLearners / 32 * kQuarters * kPairs;  // states of a channel
struct Sums {
  Complex gh, gs;  // of the row's gradient times state, and times slope
};

template <class Real>
struct Lesson {
  Work<Real> work;
  Sums* sums;                                   // [B][direction][channels][half]
  double* skip;                                 // [B][channels]
  int directions, groups, blocks;               // blocks that share 8 channels; of a batch row and a direction
  Rows<Real> log_decay, frequency, readout[2];  // gradients, without data where they are skipped
  Real *log_step, *of_skip;

  __device__ Sums* sums_of(int64_t b, int direction, int channel) const {
    return sums + ((b * directions + direction) * work.channels + channel) * work.half;
  }
};

template <class Real, bool kSecond>
static __global__ void __launch_bounds__(kLearners) learn_kernel(const Lesson<Real> lesson) {
  ATTNKIT_SHARED(Real, x, kRows * kChannels);
  ATTNKIT_SHARED(Real, g, kRows * kChannels);
  const Work<Real>& w = lesson.work;
  const int64_t b = blockIdx.x / lesson.blocks;
  const int block = static_cast<int>(blockIdx.x) % lesson.blocks, first = block / lesson.groups * kChannels;
  const int own = lane() % kChannels, channel = first + own;
  const int state = block % lesson.groups * kOfBlock + warp() * kQuarters * kPairs + lane() / kChannels;
  const Reading reading(w.lengths, b);
  Complex step[kPairs], h[kPairs] = {}, s[kPairs] = {};
  Sums sums[kPairs] = {};
  double skip = 0;
#pragma unroll
  for (int r = 0; r < kPairs; ++r) {
    const int n = state + r * kQuarters;
    step[r] = {-1, 0};
    if (n < w.half && channel < w.channels) step[r] = Oscillation(w, channel, n).step;
  }
  for (int done = 0; done < reading.fresh; done += kRows) {
    const int t = kSecond ? (reading.fresh - 1) / kRows * kRows - done : done;
    const int rows = reading.fresh - t < kRows ? reading.fresh - t : kRows;
    for (int i = static_cast<int>(threadIdx.x); i < rows * kChannels; i += kLearners) {
      const int c = first + i % kChannels;
      x[i] = c < w.channels ? w.x.at(b, 0, t + i / kChannels)[c] : Real{0};
      g[i] = c < w.channels ? reading.sum(w, b, t + i / kChannels, c) : Real{0};
    }
    __syncthreads();
    for (int i = 0; i < rows; ++i) {
      const int at = (kSecond ? rows - 1 - i : i) * kChannels + own;
      const double row = x[at], given = g[at];
      skip = fma(row, given, skip);
#pragma unroll
      for (int r = 0; r < kPairs; ++r) {
        const auto add = [&] {
          sums[r].gh = {fma(given, h[r].re, sums[r].gh.re), fma(given, h[r].im, sums[r].gh.im)};
          sums[r].gs = {fma(given, s[r].re, sums[r].gs.re), fma(given, s[r].im, sums[r].gs.im)};
        };
        if constexpr (kSecond) add();
        s[r] = s[r] + (h[r] + step[r] * s[r]);
        h[r] = h[r] + (Complex{row, 0} + step[r] * h[r]);
        if constexpr (!kSecond) add();
      }
    }
    __syncthreads();
  }
  if (channel >= w.channels) return;
#pragma unroll
  for (int r = 0; r < kPairs; ++r)
    if (state + r * kQuarters < w.half) lesson.sums_of(b, kSecond, channel)[state + r * kQuarters] = sums[r];
  if (!kSecond && state == 0) lesson.skip[b * w.channels + channel] = skip;
}

// db/dA = d^2 (1 + (x - 1) e^x) / x^2, x = dA; near 0 its series, sum of x^k / (k! (k + 2)).
__device__ inline Complex slope_of(const Oscillation& o) {
  const Complex x = o.d * o.a;
  if (norm(x) > 0.25) {
    const Complex inverse = (1 / norm(x)) * conj(x);
    return o.d * o.d * ((Complex{1, 0} + (x + Complex{-1, 0}) * (o.step + Complex{1, 0})) * (inverse * inverse));
  }
  Complex sum{0, 0}, power{1, 0};
#pragma unroll 1
  for (int k = 0; k < 14; ++k) {
    sum = sum + (1 / (k + 2.0)) * power;
    power = (1 / (k + 1.0)) * (power * x);
  }
  return o.d * o.d * sum;
}

// Adds to the gradients of a channel's tensors, those of batch rows in their order; a warp to a channel.
template <class Real>
static __global__ void __launch_bounds__(kLearners) collect_kernel(const Lesson<Real> lesson) {
  const Work<Real>& w = lesson.work;
  const int channel = static_cast<int>(blockIdx.x) * (kLearners / 32) + warp();
  if (channel >= w.channels) return;
  const auto add = [](Real* to, double x) { *to += static_cast<Real>(x); };
  double log_step = 0;
#pragma unroll 1
  for (int n = lane(); n < w.half; n += 32) {
    const Oscillation o(w, channel, n);
    Complex dz{0, 0}, db{0, 0};
#pragma unroll 1
    for (int k = 0; k < lesson.directions; ++k) {
      Sums sums{};
      for (int64_t b = 0; b < w.batch; ++b) {
        const Sums& of_row = lesson.sums_of(b, k, channel)[n];
        sums = {sums.gh + of_row.gh, sums.gs + of_row.gs};
      }
      const Complex twice = 2 * readout_of(w, k, channel, n), dc = 2 * conj(o.b * sums.gh);
      dz = dz + conj(twice * o.b * sums.gs);
      db = db + conj(twice * sums.gh);
      if (!lesson.readout[k].data) continue;
      Real* to = lesson.readout[k].at(0, channel, n);
      add(to, dc.re);
      add(to + 1, dc.im);
    }
    const Complex z = o.step + Complex{1, 0}, da = o.d * (conj(z) * dz) + conj(slope_of(o)) * db;
    log_step += o.d * (conj(o.a * z) * dz + conj(z) * db).re;
    if (lesson.log_decay.data) add(lesson.log_decay.at(0, 0, channel) + n, o.a.re * da.re);
    if (lesson.frequency.data) add(lesson.frequency.at(0, 0, channel) + n, da.im);
  }
  log_step = sum_of_warp(log_step);
  if (lane() != 0) return;
  if (lesson.log_step) add(lesson.log_step + channel, log_step);
  if (!lesson.of_skip) return;
  double skip = 0;
  for (int64_t b = 0; b < w.batch; ++b) skip += lesson.skip[b * w.channels + channel];
  add(lesson.of_skip + channel, skip);
}

}  // namespace s4d::cuda
