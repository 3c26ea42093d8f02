// Sixteen dot products with one row at a time: one reduction for all of them instead of one each.
#ifndef ATTNKIT_KERNELS_DOTS_HPP
#define ATTNKIT_KERNELS_DOTS_HPP
#include <attnkit/kernels/simd.hpp>

namespace attnkit::simd {

// sums[i] = sum of the lanes of rows[i], the same tree for each: four foldings instead of 16 times four.
ATTNKIT_INLINE void sum_rows(Vec* rows, float* sums) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const Vec a = rows[2 * i], b = rows[2 * i + 1];
    rows[i] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
              __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vec a = rows[2 * i], b = rows[2 * i + 1];
    rows[i] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
              __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const Vec a = rows[2 * i], b = rows[2 * i + 1];
    rows[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
              __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  }
  const Vec a = rows[0], b = rows[1];
  at(sums).v = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}

// out[r] = x . row r for r < 16; rows are `next` floats apart, and row n - 1 stands in for those past n.  The value for
// a row does not depend on its place or on n.
ATTNKIT_INLINE void dots(const float* x, const float* rows, int64_t next, int64_t n, int64_t d, float* out) {
  Vec sums[kLanes];
  float rest[kLanes] = {};
#pragma GCC unroll 16
  for (int64_t r = 0; r < kLanes; ++r) {
    const float* row = rows + (r < n ? r : n - 1) * next;
    Vec sum{};
    int64_t f = 0;
    for (; f + kLanes <= d; f += kLanes) sum += at(x + f).v * at(row + f).v;
    for (; f < d; ++f) rest[r] += x[f] * row[f];
    sums[r] = sum;
  }
  sum_rows(sums, out);
  for (int64_t r = 0; r < kLanes; ++r) out[r] += rest[r];
}

}  // namespace attnkit::simd
#endif
