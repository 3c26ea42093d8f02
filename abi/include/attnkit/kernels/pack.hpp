// Keys and values of one head laid out for products: keys feature by feature, values in rows of whole vectors.
#ifndef ATTNKIT_KERNELS_PACK_HPP
#define ATTNKIT_KERNELS_PACK_HPP
#include <attnkit/kernels/simd.hpp>

namespace attnkit::simd {

constexpr int64_t whole_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Rows become columns.
template <class V>
ATTNKIT_INLINE void transpose(V* x) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const V a = x[i], b = x[i + 8];
    x[i] = even_blocks<8>(a, b);
    x[i + 8] = odd_blocks<8>(a, b);
  }
#pragma GCC unroll 8
  for (int n = 0; n < 8; ++n) {
    const int i = n / 4 * 8 + n % 4;
    const V a = x[i], b = x[i + 4];
    x[i] = even_blocks<4>(a, b);
    x[i + 4] = odd_blocks<4>(a, b);
  }
#pragma GCC unroll 8
  for (int n = 0; n < 8; ++n) {
    const int i = n / 2 * 4 + n % 2;
    const V a = x[i], b = x[i + 2];
    x[i] = even_blocks<2>(a, b);
    x[i + 2] = odd_blocks<2>(a, b);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const V a = x[i], b = x[i + 1];
    x[i] = even_blocks<1>(a, b);
    x[i + 1] = odd_blocks<1>(a, b);
  }
}

// to[f][j] = row_of(j)[f] factor_of(j) for j < n and f < d, then zeros up to a whole vector.  `next`: floats from one f
// to the next.
template <class Isa, class RowOf, class FactorOf>
ATTNKIT_INLINE void pack_keys(int64_t n, int64_t d, RowOf row_of, FactorOf factor_of, float* to, int64_t next) {
  for (int64_t first = 0; first < n; first += kLanes)
    for (int64_t f = 0; f < d; f += kLanes) {
      Vec<Isa> x[kLanes];
      for (int64_t j = 0; j < kLanes; ++j) {
        x[j] = Vec<Isa>{};
        if (first + j >= n) continue;
        load(row_of(first + j) + f, d - f, x[j]);
        x[j] *= factor_of(first + j);
      }
      transpose(x);
      for (int64_t i = 0; i < kLanes && f + i < d; ++i) store(x[i], to + (f + i) * next + first);
    }
}

template <class Isa, class RowOf>
ATTNKIT_INLINE void pack_keys(int64_t n, int64_t d, RowOf row_of, float* to, int64_t next) {
  pack_keys<Isa>(
      n, d, row_of, [](int64_t) { return 1.0f; }, to, next);
}

// to[j] = row_of(j) for j < n, zeros behind its e floats.
template <class Isa, class RowOf>
ATTNKIT_INLINE void pack_values(int64_t n, int64_t e, RowOf row_of, float* to) {
  const int64_t next = whole_lanes(e);
  for (int64_t j = 0; j < n; ++j, to += next)
    for (int64_t c = 0; c < next; c += kLanes) {
      Vec<Isa> x;
      load(row_of(j) + c, e - c, x);
      store(x, to + c);
    }
}

}  // namespace attnkit::simd
#endif
