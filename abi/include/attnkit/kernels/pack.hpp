// Keys and values of one head laid out for products: keys feature by feature, values in rows of whole vectors.
#ifndef ATTNKIT_KERNELS_PACK_HPP
#define ATTNKIT_KERNELS_PACK_HPP
#include <attnkit/kernels/simd.hpp>

namespace attnkit::simd {

constexpr int64_t whole_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Rows become columns.
ATTNKIT_INLINE void transpose(Vec* x) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const Vec a = x[i], b = x[i + 8];
    x[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    x[i + 8] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
#pragma GCC unroll 8
  for (int n = 0; n < 8; ++n) {
    const int i = n / 4 * 8 + n % 4;
    const Vec a = x[i], b = x[i + 4];
    x[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    x[i + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  }
#pragma GCC unroll 8
  for (int n = 0; n < 8; ++n) {
    const int i = n / 2 * 4 + n % 2;
    const Vec a = x[i], b = x[i + 2];
    x[i] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    x[i + 2] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const Vec a = x[i], b = x[i + 1];
    x[i] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    x[i + 1] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  }
}

// to[f][j] = row_of(j)[f] factor_of(j) for j < n and f < d, then zeros up to a whole vector.  `next`: floats from one f
// to the next.
template <class RowOf, class FactorOf>
ATTNKIT_INLINE void pack_keys(int64_t n, int64_t d, RowOf row_of, FactorOf factor_of, float* to, int64_t next) {
  for (int64_t first = 0; first < n; first += kLanes)
    for (int64_t f = 0; f < d; f += kLanes) {
      Vec x[kLanes];
      for (int64_t j = 0; j < kLanes; ++j) {
        x[j] = Vec{};
        if (first + j >= n) continue;
        load(row_of(first + j) + f, d - f, x[j]);
        x[j] *= factor_of(first + j);
      }
      transpose(x);
      for (int64_t i = 0; i < kLanes && f + i < d; ++i) at(to + (f + i) * next + first).v = x[i];
    }
}

template <class RowOf>
ATTNKIT_INLINE void pack_keys(int64_t n, int64_t d, RowOf row_of, float* to, int64_t next) {
  pack_keys(
      n, d, row_of, [](int64_t) { return 1.0f; }, to, next);
}

// to[j] = row_of(j) for j < n, zeros behind its e floats.
template <class RowOf>
ATTNKIT_INLINE void pack_values(int64_t n, int64_t e, RowOf row_of, float* to) {
  const int64_t next = whole_lanes(e);
  for (int64_t j = 0; j < n; ++j, to += next)
    for (int64_t c = 0; c < next; c += kLanes) {
      Vec x;
      load(row_of(j) + c, e - c, x);
      at(to + c).v = x;
    }
}

}  // namespace attnkit::simd
#endif
