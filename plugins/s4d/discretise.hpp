// The discrete form of a diagonal state space: e^(dA) - 1 and 2 C (e^(dA) - 1) / A for 16 channels at a time, from f64.
//
// Where steps are small e^(dA) is near 1, and rounded to f32 its error would repeat over the thousands of rows that
// such a channel remembers; the difference from 1 keeps digits of its own.
#pragma once
#include <algorithm>
#include <attnkit/kernels/pack.hpp>
#include <attnkit/plugin.hpp>

namespace s4d {

namespace simd = attnkit::simd;

using Doubles = double __attribute__((vector_size(64)));
using Floats = float __attribute__((vector_size(32)));
using Longs = uint64_t __attribute__((vector_size(64)));
constexpr int64_t kDoubles = 8;

// The functions below take N vectors at once: each is a long chain, and only other chains fill its waits.

// x = e^x in each lane, to 1e-15; arguments below -708 and above 709 count as those, NaN stays NaN.
template <int N>
ATTNKIT_INLINE void exp(Doubles* x) {
  const Doubles shift = 6755399441055744.0 - Doubles{};  // 1.5 * 2^52: adding it rounds to an integer in the low bits
  constexpr double inverse_factorials[] = {
      1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
      1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
  Doubles shifted[N], r[N], p[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    Doubles y = x[i] < -708.0 ? -708.0 - Doubles{} : x[i];
    y = y > 709.0 ? 709.0 - Doubles{} : y;
    shifted[i] = y * 1.4426950408889634 + shift;
    const Doubles n = shifted[i] - shift;
    r[i] = (y - n * 0.69314718036912382) - n * 1.9082149292705877e-10;
    p[i] = 1.0 / 6227020800.0 - Doubles{};
  }
#pragma GCC unroll 13
  for (const double c : inverse_factorials)
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) p[i] = p[i] * r[i] + c;
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    Longs bits;
    std::memcpy(&bits, &shifted[i], sizeof bits);
    bits = (bits << 52) + (uint64_t{1023} << 52);
    Doubles power;
    std::memcpy(&power, &bits, sizeof power);
    x[i] = p[i] * power;
  }
}

// Cosine and sine of angles up to 1e9, to 1e-14 and better for small ones.
template <int N>
ATTNKIT_INLINE void turn(const Doubles* angle, Doubles* cosine, Doubles* sine) {
  const Doubles shift = 6755399441055744.0 - Doubles{};
  // Every second inverse factorial, signs alternating.
  constexpr double sines[] = {
      -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1.0};
  constexpr double cosines[] = {-1.0 / 87178291200.0, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
                                -1.0 / 720,           1.0 / 24,        -0.5,           1.0};
  Doubles shifted[N], y[N], s[N], c[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    shifted[i] = angle[i] * 0.63661977236758134 + shift;
    const Doubles n = shifted[i] - shift;
    y[i] = (angle[i] - n * 1.5707963267341256) - n * 6.0771005065061922e-11;
    s[i] = 1.0 / 355687428096000.0 - Doubles{};
    c[i] = 1.0 / 20922789888000.0 - Doubles{};
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
    Longs quadrant;
    std::memcpy(&quadrant, &shifted[i], sizeof quadrant);
    const auto swap = (quadrant & 1) != 0;
    const Doubles x0 = swap ? s[i] : c[i], y0 = swap ? c[i] : s[i];
    cosine[i] = ((quadrant + 1) & 2) != 0 ? -x0 : x0;
    sine[i] = (quadrant & 2) != 0 ? -y0 : y0;
  }
}

// The learned tensors, or their gradients.  readout: forward, backward.
template <class Real>
struct Learned {
  Real *log_step, *skip;
  attnkit::View<Real> log_decay, frequency, readout[2];
};

// Rows of 16 channels, all in one block of scratch: for each of `half` states e^(dA) - 1, real parts before imaginary
// ones, then by direction the readout, where the two parts of a state stand together.
struct Coefficients {
  float* data;
  int64_t half;
  float* step(int64_t part, int64_t n) const { return data + (part * half + n) * simd::kLanes; }
  float* readout(int64_t direction, int64_t n) const { return data + 2 * (half * (1 + direction) + n) * simd::kLanes; }
};

ATTNKIT_INLINE void get(const float* p, Doubles& x) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  x = __builtin_convertvector(v, Doubles);
}

ATTNKIT_INLINE void put(const Doubles& x, float* p) {
  const Floats v = __builtin_convertvector(x, Floats);
  std::memcpy(p, &v, sizeof v);
}

// S states from n on, in place: log decay, frequency and C become e^(dA) - 1 and 2 C (e^(dA) - 1) / A.
template <int S>
ATTNKIT_INLINE void discretise(const Doubles* steps, int64_t n, int64_t directions, const Coefficients& k) {
  constexpr int N = 2 * S;  // vectors, two for the lanes of a state
  Doubles decay[N], frequency[N], size[N], angle[N], cosine[N], sine[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    get(k.step(0, n + i / 2) + i % 2 * kDoubles, decay[i]);
    get(k.step(1, n + i / 2) + i % 2 * kDoubles, frequency[i]);
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
    const Doubles re = size[i] * cosine[i] - 1.0, im = size[i] * sine[i];
    put(re, k.step(0, state) + lane);
    put(im, k.step(1, state) + lane);
    // 2 (e^(dA) - 1) / A is 2 d where A is 0.
    const Doubles norm = decay[i] * decay[i] + frequency[i] * frequency[i], factor = norm > 0 ? 2.0 / norm : Doubles{};
    const Doubles b_re = norm > 0 ? (im * frequency[i] - re * decay[i]) * factor : 2 * steps[i % 2];
    const Doubles b_im = -(im * decay[i] + re * frequency[i]) * factor;
    for (int64_t direction = 0; direction < directions; ++direction) {
      float* c = k.readout(direction, state) + lane;
      Doubles c_re, c_im;
      get(c, c_re);
      get(c + simd::kLanes, c_im);
      put(c_re * b_re - c_im * b_im, c);
      put(c_re * b_im + c_im * b_re, c + simd::kLanes);
    }
  }
}

// All states of 16 channels from `first`, or of those up to the last of d.
template <class Isa>
ATTNKIT_INLINE void discretise(const Learned<const float>& in, int64_t d, int64_t first, int64_t directions,
                               const Coefficients& out) {
  const int64_t count = std::min(simd::kLanes, d - first), half = out.half;
  const auto take = [&](const attnkit::View<const float>& rows, float* to) {
    simd::pack_keys(
        count, half, [&](int64_t c) { return rows.row(first + c); }, to, simd::kLanes);
  };
  take(in.log_decay, out.step(0, 0));
  take(in.frequency, out.step(1, 0));
  for (int64_t k = 0; k < directions; ++k) {
    const auto& c = in.readout[k];
    if (c.next == 2)
      simd::pack_keys(
          count, 2 * half, [&](int64_t channel) { return c.row(0, first + channel, 0); }, out.readout(k, 0),
          simd::kLanes);
    else
      for (int64_t i = 0; i < 2 * half * simd::kLanes; ++i)
        out.readout(k, 0)[i] =
            c.row(0, first + std::min(i % simd::kLanes, count - 1), i / simd::kLanes / 2)[i / simd::kLanes % 2];
  }
  Doubles steps[2] = {};
  for (int64_t lane = 0; lane < count; ++lane) steps[lane / kDoubles][lane % kDoubles] = in.log_step[first + lane];
  exp<2>(steps);
  constexpr int S = Isa::rows / 4 > 0 ? Isa::rows / 4 : 1;
  int64_t n = 0;
  for (; n + S <= half; n += S) discretise<S>(steps, n, directions, out);
  for (; n < half; ++n) discretise<1>(steps, n, directions, out);
}

}  // namespace s4d
