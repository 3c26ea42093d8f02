// Common to luna's run on the CPU and its gradient: the arguments of a run, and pieces of both.
#pragma once
#include <attnkit/kernels/pack.hpp>
#include <type_traits>

#include "model.hpp"

namespace luna {

using attnkit::Layout;
using attnkit::View;
namespace simd = attnkit::simd;

inline int64_t lanes(const Shape& s) { return simd::whole_lanes(s.l); }

// Of all workers, by batch row: pq, the packed sequence, and what is known if there is no state.  A run that trains
// saves it all.
template <class Real = float>
struct Shared {
  Real *pq, *packed, *memory;
  int64_t memory_next;
  Shared(Layout& layout, const Shape& s, int64_t batch, bool packs, bool has_state)
      : pq(layout.take<Real>(packs ? batch * s.l * s.width() : 0)),
        packed(layout.take<Real>(packs ? batch * s.l * s.width() : 0)),
        memory_next(has_state ? 0 : simd::whole_lanes(memory_size(s))) {
    memory = layout.take<Real>(batch * memory_next);
  }
};

// The arguments of a run.
template <class Real = float>
struct Tensors {
  bool aux;  // P is a sequence of the run, else the learned one, which is the same for all rows
  View<const Real> p, q, k, v, pk, pv, pq_weight, pq_bias, k_weight, k_bias, v_weight, v_bias, norm_weight, norm_bias;
  Tensors(const attn_run& run, const Ports& io, const Shape& s)
      : aux(s.contextual && io.p_in.of(run.ports).data != nullptr),
        p(run, aux ? io.p_in : io.start),
        q(run, io.q),
        k(run, io.k),
        v(run, s.tied ? io.k : io.v),
        pk(run, io.pk),
        pv(run, s.tied ? io.pk : io.pv),
        pq_weight(run, io.pq_weight),
        pq_bias(run, io.pq_bias),
        k_weight(run, io.k_weight),
        k_bias(run, io.k_bias),
        v_weight(run, io.v_weight),
        v_bias(run, io.v_bias),
        norm_weight(run, io.norm_weight),
        norm_bias(run, io.norm_bias) {}
  // Rows of P that count for a causal row: rows of zeros at the end of a P that came from an earlier block are those
  // that it left out.
  int64_t live(int64_t b, const Shape& s) const {
    int64_t rows = s.l;
    const auto empty = [&](const Real* row) {
      return std::all_of(row, row + s.width(), [](Real x) { return x == 0; });
    };
    while (aux && s.dynamic && rows > 0 && empty(p.row(b, 0, rows - 1))) --rows;
    return rows;
  }
};

// Numbers [from, from + count) of row j of a batch row.  Its heads need not lie beside each other.
struct Slice {
  int64_t b, j, from, count;
};

// Calls body(part, n, at) with each part of a slice: n numbers, the at-th and those after it.  d: of a head.
template <class Real, class Body>
ATTNKIT_INLINE void for_parts(const View<Real>& view, int64_t d, const Slice& s, const Body& body) {
  for (int64_t at = 0; at < s.count;) {
    const int64_t first = (s.from + at) % d, n = std::min(s.count - at, d - first);
    body(view.row(s.b, (s.from + at) / d, s.j) + first, n, at);
    at += n;
  }
}

template <class Real>
ATTNKIT_INLINE void gather(const View<const Real>& view, int64_t d, const Slice& slice, Real* to) {
  for_parts(
      view, d, slice, [to](const Real* part, int64_t n, int64_t at) __attribute__((always_inline)) {
        std::memcpy(to + at, part, static_cast<size_t>(n) * sizeof(Real));
      });
}

// LN(y + p) is (y + p - mean) factor weight + bias.
struct Moments {
  double mean, factor;
};
template <class Real>
ATTNKIT_INLINE Moments moments(const Real* y, const Real* p, int64_t width) {
  double mean = 0, square = 0;
  for (int64_t c = 0; c < width; ++c) mean += double{y[c]} + p[c];
  mean /= static_cast<double>(width);
  for (int64_t c = 0; c < width; ++c) {
    const double x = (double{y[c]} + p[c]) - mean;
    square += x * x;
  }
  return {mean, 1 / std::sqrt(square / static_cast<double>(width) + 1e-5)};
}

template <class Real>
ATTNKIT_INLINE void normalise(const Real* y, const Real* p, int64_t width, const Real* weight, const Real* bias,
                              Real* out) {
  const Moments of = moments(y, p, width);
  for (int64_t c = 0; c < width; ++c)
    out[c] = static_cast<Real>(((double{y[c]} + p[c]) - of.mean) * of.factor) * weight[c] + bias[c];
}

// y = log(1 + y) for y in [0, 1], as 2 atanh(y / (2 + y)).
template <class V>
ATTNKIT_INLINE void log1p(V& y) {
  const V s = y / (y + 2.0f), square = s * s;
  V sum = 1.0f / 17 - V{};
#pragma GCC unroll 8
  for (int k = 15; k >= 1; k -= 2) sum = sum * square + 1.0f / static_cast<float>(k);
  y = 2.0f * s * sum;
}
ATTNKIT_INLINE void log1p(double& y) { y = std::log1p(y); }
template <class V>
ATTNKIT_INLINE void exp(V& x) {
  simd::exp(x);
}
ATTNKIT_INLINE void exp(double& x) { x = std::exp(x); }

// The positive map of the causal pack, and its slope; of a vector of floats or a double.  NaN stays NaN.
template <class V>
ATTNKIT_INLINE void activate(Map map, V& x, V& slope) {
  using Real = std::conditional_t<std::is_same_v<V, double>, double, float>;
  if (map == Map::kElu1) {
    V power = x;
    luna::exp(power);
    slope = simd::select(x > Real{0}, V{} + Real{1}, power);
    x = simd::select(x > Real{0}, x + Real{1}, power);
    return;
  }
  // log2(1 + 2^x) is softplus(x log 2) / log 2
  const Real base = map == Map::kLog2 ? static_cast<Real>(0.69314718055994531) : 1;
  V power = simd::select(x > Real{0}, -x, x) * base;
  luna::exp(power);
  slope = simd::select(x > Real{0}, V{} + Real{1}, power) / (power + Real{1});
  log1p(power);
  x = simd::select(x < Real{0}, V{}, x) + power / base;
}

}  // namespace luna
