// The discrete form of a diagonal state space: e^(dA) - 1 and 2 C (e^(dA) - 1) / A for 16 channels at a time, from f64.
//
// Where steps are small e^(dA) is near 1, and rounded to f32 its error would repeat over the thousands of rows that
// such a channel remembers; the difference from 1 keeps digits of its own.
#pragma once
#include <attnkit/kernels/simd.hpp>
#include <attnkit/plugin.hpp>

namespace s4d {

namespace simd = attnkit::simd;

using Doubles = double __attribute__((vector_size(64)));
using Floats = float __attribute__((vector_size(32)));
using Longs = uint64_t __attribute__((vector_size(64)));
constexpr int64_t kDoubles = 8;

// x = e^x in each lane, to 1e-15; arguments below -708 and above 709 count as those, NaN stays NaN.
ATTNKIT_INLINE void exp(Doubles& x) {
  const Doubles shift = 6755399441055744.0 - Doubles{};  // 1.5 * 2^52: adding it rounds to an integer in the low bits
  Doubles y = x < -708.0 ? -708.0 - Doubles{} : x;
  y = y > 709.0 ? 709.0 - Doubles{} : y;
  const Doubles shifted = y * 1.4426950408889634 + shift, n = shifted - shift;
  const Doubles r = (y - n * 0.69314718036912382) - n * 1.9082149292705877e-10;
  constexpr double inverse_factorials[] = {
      1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
      1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
  Doubles p = 1.0 / 6227020800.0 - Doubles{};
#pragma GCC unroll 13
  for (const double c : inverse_factorials) p = p * r + c;
  Longs bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 52) + (uint64_t{1023} << 52);
  Doubles power;
  std::memcpy(&power, &bits, sizeof power);
  x = p * power;
}

// Cosine and sine of angles up to 1e9, to 1e-14 and better for small ones.
ATTNKIT_INLINE void turn(const Doubles& angle, Doubles& cosine, Doubles& sine) {
  const Doubles shift = 6755399441055744.0 - Doubles{};
  const Doubles shifted = angle * 0.63661977236758134 + shift, n = shifted - shift;
  const Doubles y = (angle - n * 1.5707963267341256) - n * 6.0771005065061922e-11, y2 = y * y;
  // Every second inverse factorial, signs alternating.
  constexpr double sines[] = {
      -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1.0};
  constexpr double cosines[] = {-1.0 / 87178291200.0, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
                                -1.0 / 720,           1.0 / 24,        -0.5,           1.0};
  Doubles s = 1.0 / 355687428096000.0 - Doubles{}, c = 1.0 / 20922789888000.0 - Doubles{};
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) {
    s = s * y2 + sines[k];
    c = c * y2 + cosines[k];
  }
  s *= y;
  Longs quadrant;
  std::memcpy(&quadrant, &shifted, sizeof quadrant);
  const auto swap = (quadrant & 1) != 0;
  const Doubles x0 = swap ? s : c, y0 = swap ? c : s;
  cosine = ((quadrant + 1) & 2) != 0 ? -x0 : x0;
  sine = (quadrant & 2) != 0 ? -y0 : y0;
}

// The learned tensors.  readout: forward, backward.
struct Learned {
  const float *log_step, *skip;
  attnkit::View<const float> log_decay, frequency, readout[2];
};

// Rows of 16 channels for each of `half` states, all in one block of scratch: e^(dA) - 1, real and imaginary part, then
// the readout by direction, real and imaginary part.
struct Coefficients {
  float* data;
  int64_t half;
  float* row(int64_t part, int64_t n) const { return data + (part * half + n) * simd::kLanes; }
};

// The first `channels` channels of a learned tensor become one lane each of the rows of `part`; the others repeat the
// last.  The states of a channel lie `next` floats apart, those of the next channel `stride`.
ATTNKIT_INLINE void transpose(const float* p, int64_t stride, int64_t next, int64_t channels, int64_t part,
                              const Coefficients& out) {
  for (int64_t lane = 0; lane < simd::kLanes; ++lane) {
    const float* channel = p + (lane < channels ? lane : channels - 1) * stride;
    for (int64_t n = 0; n < out.half; ++n) out.row(part, n)[lane] = channel[n * next];
  }
}

ATTNKIT_INLINE void get(const float* p, Doubles& x) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  x = __builtin_convertvector(v, Doubles);
}

ATTNKIT_INLINE void put(const Doubles& x, float* p) {
  const Floats v = __builtin_convertvector(x, Floats);
  std::memcpy(p, &v, sizeof v);
}

// Eight lanes of state n, in place: log decay, frequency and C become e^(dA) - 1 and 2 C (e^(dA) - 1) / A.
ATTNKIT_INLINE void discretise(const Doubles& step, int64_t n, int64_t directions, const Coefficients& k,
                               int64_t lane) {
  Doubles decay, frequency, cosine, sine;
  get(k.row(0, n) + lane, decay);
  get(k.row(1, n) + lane, frequency);
  exp(decay);
  Doubles size = -step * decay;
  exp(size);
  turn(step * frequency, cosine, sine);
  const Doubles re = size * cosine - 1.0, im = size * sine;
  put(re, k.row(0, n) + lane);
  put(im, k.row(1, n) + lane);
  // 2 (e^(dA) - 1) / A is 2 d where A is 0.
  const Doubles norm = decay * decay + frequency * frequency, factor = norm > 0 ? 2.0 / norm : Doubles{};
  const Doubles b_re = norm > 0 ? (im * frequency - re * decay) * factor : 2 * step;
  const Doubles b_im = -(im * decay + re * frequency) * factor;
  for (int64_t part = 2; part < 2 + 2 * directions; part += 2) {
    Doubles c_re, c_im;
    get(k.row(part, n) + lane, c_re);
    get(k.row(part + 1, n) + lane, c_im);
    put(c_re * b_re - c_im * b_im, k.row(part, n) + lane);
    put(c_re * b_im + c_im * b_re, k.row(part + 1, n) + lane);
  }
}

// All states of 16 channels from `first`, or of those up to the last of d.
ATTNKIT_INLINE void discretise(const Learned& in, int64_t d, int64_t first, int64_t directions,
                               const Coefficients& out) {
  const int64_t count = d - first;
  transpose(in.log_decay.row(first), in.log_decay.next, 1, count, 0, out);
  transpose(in.frequency.row(first), in.frequency.next, 1, count, 1, out);
  for (int64_t k = 0; k < directions; ++k)
    for (int64_t part = 0; part < 2; ++part)
      transpose(in.readout[k].row(0, first, 0) + part, in.readout[k].head, in.readout[k].next, count, 2 + 2 * k + part,
                out);
  Doubles steps[2] = {};
  for (int64_t lane = 0; lane < simd::kLanes; ++lane)
    steps[lane / kDoubles][lane % kDoubles] = in.log_step[first + (lane < count ? lane : count - 1)];
  exp(steps[0]);
  exp(steps[1]);
  for (int64_t n = 0; n < out.half; ++n) {
    discretise(steps[0], n, directions, out, 0);
    discretise(steps[1], n, directions, out, kDoubles);
  }
}

}  // namespace s4d
