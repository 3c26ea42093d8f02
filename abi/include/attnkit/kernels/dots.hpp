// Sixteen dot products with one row at a time: one reduction for all of them instead of one each.
#ifndef ATTNKIT_KERNELS_DOTS_HPP
#define ATTNKIT_KERNELS_DOTS_HPP
#include <attnkit/kernels/simd.hpp>

namespace attnkit::simd {

// sums[i] = sum of the lanes of rows[i], the same tree for each: four foldings instead of 16 times four.
template <class V>
ATTNKIT_INLINE void sum_rows(V* rows, float* sums) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const V a = rows[2 * i], b = rows[2 * i + 1];
    rows[i] = even_blocks<1>(a, b) + odd_blocks<1>(a, b);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const V a = rows[2 * i], b = rows[2 * i + 1];
    rows[i] = even_blocks<2>(a, b) + odd_blocks<2>(a, b);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const V a = rows[2 * i], b = rows[2 * i + 1];
    rows[i] = even_blocks<4>(a, b) + odd_blocks<4>(a, b);
  }
  const V a = rows[0], b = rows[1];
  store(even_blocks<8>(a, b) + odd_blocks<8>(a, b), sums);
}

// out[r] = x . row r for r < 16; rows are `next` floats apart, and row n - 1 stands in for those past n.  The value for
// a row does not depend on its place or on n.
template <class Isa>
ATTNKIT_INLINE void dots(const float* x, const float* rows, int64_t next, int64_t n, int64_t d, float* out) {
  constexpr int64_t together = Isa::rows;  // sums in registers
  Vec<Isa> sums[kLanes];
  alignas(64) float rest[kLanes] = {};
#pragma GCC unroll 8
  for (int64_t from = 0; from < kLanes; from += together) {
    const float* row[together];
    Vec<Isa> sum[together] = {};
#pragma GCC unroll 8
    for (int64_t r = 0; r < together; ++r) row[r] = rows + (from + r < n ? from + r : n - 1) * next;
    int64_t f = 0;
    for (; f + kLanes <= d; f += kLanes)
#pragma GCC unroll 8
      for (int64_t r = 0; r < together; ++r) sum[r] += at<Isa>(x + f) * at<Isa>(row[r] + f);
    for (; f < d; ++f)
      for (int64_t r = 0; r < together; ++r) rest[from + r] += x[f] * row[r][f];
#pragma GCC unroll 8
    for (int64_t r = 0; r < together; ++r) sums[from + r] = sum[r];
  }
  sum_rows(sums, out);
  store(at<Isa>(out) + at<Isa>(rest), out);
}

}  // namespace attnkit::simd
#endif
