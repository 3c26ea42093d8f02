// Hashes of tokens into buckets, argmax [x R; -x R], and their order by bucket.
//
// A bucket decides who sees whom, so the last bit of a product may not: every x . R_k is summed in f64 feature by
// feature, and a product of two f32 is exact in f64, so fused or not, in vectors of any width, each sum has the same
// bits on every machine.  Of equal maxima the first wins.
#ifndef ATTNKIT_REFORMER_HASH_HPP
#define ATTNKIT_REFORMER_HASH_HPP
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/simd.hpp>

namespace attnkit::reformer {

constexpr int64_t kDoubles = 8, kMostRows = 8;  // lanes, and tokens of the largest tile
using Doubles = double __attribute__((vector_size(64)));

ATTNKIT_INLINE Doubles& wide(double* p) { return *reinterpret_cast<Doubles*>(p); }

// Where one worker hashes; all of it aligned to a vector.
struct HashSpace {
  double *rotations, *x, *products;  // [d][columns], [rows][d], [rows][columns], columns in whole vectors
  static int64_t whole(int64_t columns) { return (columns + kDoubles - 1) / kDoubles * kDoubles; }
  static int64_t doubles(int64_t d, int64_t columns) {
    return d * whole(columns) + kMostRows * (whole(d) + whole(columns));
  }
  HashSpace(double* at, int64_t d, int64_t columns)
      : rotations(at), x(at + d * whole(columns)), products(x + kMostRows * whole(d)) {}
};

// Columns [from, from + 8 C) of the products of R tokens.
template <int R, int C>
ATTNKIT_INLINE void multiply(const HashSpace& space, int64_t d, int64_t columns, int64_t from) {
  Doubles sums[R][C] = {};
  for (int64_t f = 0; f < d; ++f) {
    Doubles k[C];
    for (int c = 0; c < C; ++c) k[c] = wide(space.rotations + f * columns + from + c * kDoubles);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) sums[r][c] += space.x[r * d + f] * k[c];
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) wide(space.products + r * columns + from + c * kDoubles) = sums[r][c];
}

// The bucket of one token: the first of the largest among `half` products and their opposites.  Zeros behind the
// products change nothing: they are the largest only where all are zero, and the first of those is taken.
ATTNKIT_INLINE int32_t bucket(double* products, int64_t half, int64_t columns) {
  Doubles most = Doubles{} - __builtin_inf(), least = Doubles{} + __builtin_inf();
  for (int64_t k = 0; k < columns; k += kDoubles) {
    const Doubles x = wide(products + k);
    most = x > most ? x : most;
    least = x < least ? x : least;
  }
  double high = most[0], low = least[0];
  for (int64_t k = 1; k < kDoubles; ++k) {
    high = most[k] > high ? most[k] : high;
    low = least[k] < low ? least[k] : low;
  }
  const bool opposite = -low > high;
  const double wanted = opposite ? low : high;
  for (int64_t k = 0; k < half; ++k)
    if (products[k] == wanted) return static_cast<int32_t>(opposite ? half + k : k);
  return 0;  // not-a-numbers only
}

// buckets[i] = the bucket of token i < n in this round, one of `count`.
template <class Isa>
ATTNKIT_INLINE void hash(const View<const float>& x, int64_t b, int64_t h, int64_t n,
                         const View<const float>& rotations, int64_t round, int64_t d, int64_t count,
                         const HashSpace& space, int32_t* buckets) {
  constexpr int R = Isa::rows, C = Isa::columns;
  const int64_t half = count / 2, columns = HashSpace::whole(half);
  for (int64_t f = 0; f < d; ++f)
    for (int64_t k = 0; k < columns; ++k)
      space.rotations[f * columns + k] = k < half ? double{rotations.row(h, f, round)[k]} : 0.0;
  for (int64_t i = 0; i < n; i += R) {
    for (int64_t r = 0; r < R; ++r) {
      const float* row = x.row(b, h, i + r < n ? i + r : n - 1);
      for (int64_t f = 0; f < d; ++f) space.x[r * d + f] = row[f];
    }
    int64_t k = 0;
    for (; k + C * kDoubles <= columns; k += C * kDoubles) multiply<R, C>(space, d, columns, k);
    for (; k < columns; k += kDoubles) multiply<R, 1>(space, d, columns, k);
    for (int64_t r = 0; r < R && i + r < n; ++r) buckets[i + r] = bucket(space.products + r * columns, half, columns);
  }
}

// order = tokens [0, n) by bucket, those of one bucket by position.  ends: one number per bucket.
ATTNKIT_INLINE void sort(const int32_t* buckets, int64_t n, int64_t count, int32_t* ends, int32_t* order) {
  std::memset(ends, 0, static_cast<size_t>(count) * sizeof *ends);
  for (int64_t i = 0; i < n; ++i) ++ends[buckets[i]];
  for (int64_t k = 1; k < count; ++k) ends[k] += ends[k - 1];
  for (int64_t i = n - 1; i >= 0; --i) order[--ends[buckets[i]]] = static_cast<int32_t>(i);
}

}  // namespace attnkit::reformer
#endif
