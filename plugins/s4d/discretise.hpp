// The discrete form of a diagonal state space: e^(dA) - 1 and 2 C (e^(dA) - 1) / A for 16 channels at a time, from f64.
//
// For small steps e^(dA) is near 1, and rounded to f32 its error would repeat over the thousands of rows that
// such a channel remembers; the difference from 1 keeps digits of its own.
#pragma once
#include <algorithm>
#include <attnkit/kernels/pack.hpp>

#include "model.hpp"

namespace s4d {

namespace simd = attnkit::simd;

template <class Isa>
using Doubles = simd::Vector<double, Isa>;
constexpr int64_t kDoubles = 8;

// The functions below take N vectors at once: each is a long chain, and only other chains fill its waits.

// x = e^x in each lane, to 1e-15; arguments below -708 and above 709 count as those, NaN stays NaN.
template <int N, class V>
ATTNKIT_INLINE void exp(V* x) {
  const V shift = 6755399441055744.0 - V{};  // 1.5 * 2^52: adding it rounds to an integer in the low bits
  constexpr double inverse_factorials[] = {
      1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
      1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
  V shifted[N], r[N], p[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    V y = simd::select(x[i] < -708.0, -708.0 - V{}, x[i]);
    y = simd::select(y > 709.0, 709.0 - V{}, y);
    shifted[i] = y * 1.4426950408889634 + shift;
    const V n = shifted[i] - shift;
    r[i] = (y - n * 0.69314718036912382) - n * 1.9082149292705877e-10;
    p[i] = 1.0 / 6227020800.0 - V{};
  }
#pragma GCC unroll 13
  for (const double c : inverse_factorials)
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) p[i] = p[i] * r[i] + c;
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    x[i] = p[i] * simd::bits_as<double>((simd::bits_as<uint64_t>(shifted[i]) << 52) + (uint64_t{1023} << 52));
  }
}

// Cosine and sine of angles up to 1e9, to 1e-14 and better for small ones.
template <int N, class V>
ATTNKIT_INLINE void turn(const V* angle, V* cosine, V* sine) {
  const V shift = 6755399441055744.0 - V{};
  // Every second inverse factorial, signs alternating.
  constexpr double sines[] = {
      -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1.0};
  constexpr double cosines[] = {-1.0 / 87178291200.0, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
                                -1.0 / 720,           1.0 / 24,        -0.5,           1.0};
  V shifted[N], y[N], s[N], c[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    shifted[i] = angle[i] * 0.63661977236758134 + shift;
    const V n = shifted[i] - shift;
    y[i] = (angle[i] - n * 1.5707963267341256) - n * 6.0771005065061922e-11;
    s[i] = 1.0 / 355687428096000.0 - V{};
    c[i] = 1.0 / 20922789888000.0 - V{};
  }
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k)
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      s[i] = s[i] * (y[i] * y[i]) + sines[k];
      c[i] = c[i] * (y[i] * y[i]) + cosines[k];
    }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    s[i] *= y[i];
    const auto quadrant = simd::bits_as<int64_t>(shifted[i]);
    const auto swap = (quadrant & 1) > 0;
    const V x0 = simd::select(swap, s[i], c[i]), y0 = simd::select(swap, c[i], s[i]);
    cosine[i] = simd::select(((quadrant + 1) & 2) > 0, -x0, x0);
    sine[i] = simd::select((quadrant & 2) > 0, -y0, y0);
  }
}

// Rows of 16 channels, all in one block of scratch: for each of `half` states e^(dA) - 1, real parts before imaginary
// ones, then by direction the readout, where the two parts of a state stand together.
struct Coefficients {
  float* data;
  int64_t half;
  float* step(int64_t part, int64_t n) const { return data + (part * half + n) * simd::kLanes; }
  float* readout(int64_t direction, int64_t n) const { return data + 2 * (half * (1 + direction) + n) * simd::kLanes; }
};

// S states from n on, in place: log decay, frequency and C become e^(dA) - 1 and 2 C (e^(dA) - 1) / A.
template <int S, class V>
ATTNKIT_INLINE void discretise(const V* steps, int64_t n, int64_t directions, const Coefficients& k) {
  constexpr int N = 2 * S;  // vectors, two for the lanes of a state
  V decay[N], frequency[N], size[N], angle[N], cosine[N], sine[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    decay[i] = simd::load_as<V>(k.step(0, n + i / 2) + i % 2 * kDoubles);
    frequency[i] = simd::load_as<V>(k.step(1, n + i / 2) + i % 2 * kDoubles);
  }
  exp<N>(decay);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    size[i] = -steps[i % 2] * decay[i];
    angle[i] = steps[i % 2] * frequency[i];
  }
  exp<N>(size);
  turn<N>(angle, cosine, sine);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    const int64_t state = n + i / 2, lane = i % 2 * kDoubles;
    const V re = size[i] * cosine[i] - 1.0, im = size[i] * sine[i];
    simd::store_as(re, k.step(0, state) + lane);
    simd::store_as(im, k.step(1, state) + lane);
    // 2 (e^(dA) - 1) / A is 2 d where A is 0.
    const V norm = decay[i] * decay[i] + frequency[i] * frequency[i];
    const auto some = norm > 0.0;
    const V factor = simd::select(some, 2.0 / norm, V{});
    const V b_re = simd::select(some, (im * frequency[i] - re * decay[i]) * factor, 2.0 * steps[i % 2]);
    const V b_im = -(im * decay[i] + re * frequency[i]) * factor;
    for (int64_t direction = 0; direction < directions; ++direction) {
      float* c = k.readout(direction, state) + lane;
      const V c_re = simd::load_as<V>(c), c_im = simd::load_as<V>(c + simd::kLanes);
      simd::store_as(c_re * b_re - c_im * b_im, c);
      simd::store_as(c_re * b_im + c_im * b_re, c + simd::kLanes);
    }
  }
}

// All states of 16 channels from `first`, or of those up to the last of d.
template <class Isa>
ATTNKIT_INLINE void discretise(const Learned<const float>& in, int64_t d, int64_t first, int64_t directions,
                               const Coefficients& out) {
  const int64_t count = std::min(simd::kLanes, d - first), half = out.half;
  const auto take = [&](const attnkit::View<const float>& rows, float* to) {
    simd::pack_keys<Isa>(
        count, half, [&](int64_t c) { return rows.row(first + c); }, to, simd::kLanes);
  };
  take(in.log_decay, out.step(0, 0));
  take(in.frequency, out.step(1, 0));
  for (int64_t k = 0; k < directions; ++k) {
    const auto& c = in.readout[k];
    if (c.next == 2)
      simd::pack_keys<Isa>(
          count, 2 * half, [&](int64_t channel) { return c.row(0, first + channel, 0); }, out.readout(k, 0),
          simd::kLanes);
    else
      for (int64_t i = 0; i < 2 * half * simd::kLanes; ++i)
        out.readout(k, 0)[i] =
            c.row(0, first + std::min(i % simd::kLanes, count - 1), i / simd::kLanes / 2)[i / simd::kLanes % 2];
  }
  double log_steps[simd::kLanes] = {};
  std::copy(in.log_step + first, in.log_step + first + count, log_steps);
  Doubles<Isa> steps[2] = {simd::at<Isa>(log_steps), simd::at<Isa>(log_steps + kDoubles)};
  exp<2>(steps);
  constexpr int S = Isa::rows / 4 > 0 ? Isa::rows / 4 : 1;
  int64_t n = 0;
  for (; n + S <= half; n += S) discretise<S>(steps, n, directions, out);
  for (; n < half; ++n) discretise<1>(steps, n, directions, out);
}

}  // namespace s4d
