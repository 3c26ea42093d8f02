// What both forms of Luna are made of: loops over work items, projections of P, sums of rows, the maps of the causal
// form.
#pragma once
#include <attnkit/kernels/dots.hpp>
#include <attnkit/kernels/exponential.hpp>
#include <attnkit/kernels/guard.hpp>

namespace luna {

using attnkit::Sight;
using attnkit::View;
namespace simd = attnkit::simd;
using simd::kLanes;
using simd::Vec;

enum class Map { kLog2, kSoftplus, kElu1 };

struct Shape {
  int64_t heads, pack_heads, d, e, l;  // H, heads of the pack attention, D, E, rows of P
  bool causal, tied, contextual, dynamic;
  Map map;
  int64_t width() const { return heads * d; }
  int64_t values() const { return tied ? d : e; }  // of a head's output
  int64_t lanes() const { return (l + kLanes - 1) / kLanes * kLanes; }
};

// A learned projection, [out][in] and [out].
struct Dense {
  View<const float> weight;
  const float* bias;
};

template <class F>
struct Loop {
  const F& f;
  int64_t begin, end;
  uint32_t worker;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    for (int64_t item = begin; item < end; ++item) f.template operator()<Isa>(item, worker);
  }
};

// Runs f<Isa>(item, worker) for n items of about this many flops each.
template <class F>
void each(const attn_exec& exec, int64_t n, double flops, const F& f) {
  attnkit::for_each(
      exec, n, flops,
      [](uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
        simd::dispatch(Loop<F>{*reinterpret_cast<const F*>(arg), begin, end, worker});
      },
      &f);
}

// Outputs [from, from + 16) of rows [0, n) of x, times scale.  Rows of x are `width` floats apart.
ATTNKIT_INLINE void project(const float* x, int64_t n, int64_t width, const Dense& dense, float scale, int64_t from,
                            float* out, int64_t outputs) {
  const int64_t here = std::min(kLanes, outputs - from);
  Vec bias;
  simd::load(dense.bias + from, here, bias);
  for (int64_t i = 0; i < n; ++i) {
    float sums[kLanes];
    simd::dots(x + i * width, dense.weight.row(from), dense.weight.next, here, width, sums);
    simd::store((simd::at(sums).v + bias) * scale, here, out + i * outputs + from);
  }
}

// Keeps the first n lanes; the others become -infinity.
ATTNKIT_INLINE void keep(int64_t n, Vec& x) {
  const Vec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  x = lane < static_cast<float>(n) ? x : -__builtin_inff() - Vec{};
}

ATTNKIT_INLINE float largest_of(const Vec& v) {
  Vec x = v;
  Vec y = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  x = x > y ? x : y;
  y = __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  x = x > y ? x : y;
  y = __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  x = x > y ? x : y;
  return x[0] > x[1] ? x[0] : x[1];
}

// w = e^(scale w - max scale w) over the first n, scale > 0; returns their sum.  The rest of the last 16 becomes 0.
ATTNKIT_INLINE float exponentiate(float* w, int64_t n, float scale) {
  Vec top = -__builtin_inff() - Vec{};
  for (int64_t r = 0; r < n; r += kLanes) {
    Vec x = simd::at(w + r).v * scale;
    keep(n - r, x);
    simd::at(w + r).v = x;
    top = x > top ? x : top;
  }
  const float largest = largest_of(top);
  Vec sum{};
  for (int64_t r = 0; r < n; r += kLanes) {
    Vec x = simd::at(w + r).v - largest;
    simd::exp(x);
    simd::at(w + r).v = x;
    sum += x;
  }
  return simd::sum(sum);
}

template <int C>
ATTNKIT_INLINE void mix_panel(const float* w, const float* rows, int64_t next, int64_t n, float divisor, float* o) {
  Vec sums[C] = {};
  for (int64_t r = 0; r < n; ++r)
    for (int c = 0; c < C; ++c) sums[c] += w[r] * simd::at(rows + r * next + c * kLanes).v;
  for (int c = 0; c < C; ++c) simd::at(o + c * kLanes).v = sums[c] / divisor;
}

// o = sum of w_r row_r / divisor over n rows that are `next` floats apart and e wide.
ATTNKIT_INLINE void mix(const float* w, const float* rows, int64_t next, int64_t n, float divisor, int64_t e,
                        float* o) {
  int64_t c = 0;
  for (; c + 4 * kLanes <= e; c += 4 * kLanes) mix_panel<4>(w, rows + c, next, n, divisor, o + c);
  for (; c + kLanes <= e; c += kLanes) mix_panel<1>(w, rows + c, next, n, divisor, o + c);
  for (; c < e; ++c) {
    float sum = 0;
    for (int64_t r = 0; r < n; ++r) sum += w[r] * rows[r * next + c];
    o[c] = sum / divisor;
  }
}

// Scores of x and n rows; writes whole vectors.
ATTNKIT_INLINE void score(const float* x, const float* rows, int64_t next, int64_t n, int64_t d, float* out) {
  for (int64_t r = 0; r < n; r += kLanes) simd::dots(x, rows + r * next, next, n - r, d, out + r);
}

// y = log(1 + y) for y in [0, 1], as 2 atanh(y / (2 + y)).
ATTNKIT_INLINE void log1p(Vec& y) {
  const Vec s = y / (y + 2.0f), square = s * s;
  Vec sum = 1.0f / 17 - Vec{};
#pragma GCC unroll 8
  for (int k = 15; k >= 1; k -= 2) sum = sum * square + 1.0f / static_cast<float>(k);
  y = 2.0f * s * sum;
}

// The positive map of the causal pack.  NaN stays NaN.
ATTNKIT_INLINE void activate(Map map, Vec& x) {
  if (map == Map::kElu1) {
    Vec power = x;
    simd::exp(power);
    x = x > 0 ? x + 1.0f : power;
    return;
  }
  const float base = map == Map::kLog2 ? 0.69314718f : 1.0f;  // log2(1 + 2^x) is softplus(x log 2) / log 2
  Vec power = (x > 0 ? -x : x) * base;
  simd::exp(power);
  log1p(power);
  x = (x < 0 ? Vec{} : x) + power / base;
}

// How many rows of P count, when rows of zeros are those that earlier blocks left out.
inline int64_t live_rows(const View<const float>& p, int64_t b, int64_t l, int64_t width) {
  const auto empty = [&](int64_t i) {
    const float* row = p.row(b, 0, i);
    return std::all_of(row, row + width, [](float x) { return x == 0; });
  };
  while (l > 0 && empty(l - 1)) --l;
  return l;
}

}  // namespace luna
