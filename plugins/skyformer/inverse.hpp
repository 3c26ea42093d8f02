// The approximate inverse of a symmetric matrix, by the iteration of order three that Skyformer takes.
//
// Every matrix here is a polynomial of the first one, so all are symmetric and each product is computed above its
// diagonal and mirrored.  A step multiplies small errors by 13/4 at most, whatever the condition of the matrix: in
// double the 16 steps that the option allows leave 1e-8 of them, in single precision ten would show.
#pragma once
#include <attnkit/kernels/simd.hpp>
#include <utility>

namespace skyformer {

using Wide = double __attribute__((vector_size(64)));
struct __attribute__((packed, may_alias)) LooseWide {
  Wide v;
};
constexpr int64_t kWide = 8;

ATTNKIT_INLINE const LooseWide& at(const double* p) { return *reinterpret_cast<const LooseWide*>(p); }
ATTNKIT_INLINE LooseWide& at(double* p) { return *reinterpret_cast<LooseWide*>(p); }

// An m x m matrix inside a square whose side is a multiple of 16, zeros around it.  Rows are 8 doubles further apart
// than they are wide: a power of two would put a column into few sets of the cache.
struct Square {
  int64_t m, side, next;
  explicit Square(int64_t size) : m(size), side((size + 15) / 16 * 16), next(side + 8) {}
  int64_t count() const { return side * next; }
};

// The tile of R rows and C Wides at (i, j) of factor * a * b.  a is read as its transpose, which it equals.
template <int R, int C>
ATTNKIT_INLINE void tile(const Square& q, const double* a, const double* b, double factor, int64_t i, int64_t j,
                         double* out) {
  Wide sums[R][C] = {};
  for (int64_t k = 0; k < q.m; ++k) {
    Wide row[C];
    for (int c = 0; c < C; ++c) row[c] = at(b + k * q.next + j + c * kWide).v;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) sums[r][c] += a[k * q.next + i + r] * row[c];
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) at(out + (i + r) * q.next + j + c * kWide).v = sums[r][c] * factor;
}

// out = factor a b + diagonal I, all three symmetric and of one square.
template <class Isa>
ATTNKIT_INLINE void multiply(const Square& q, const double* a, const double* b, double factor, double diagonal,
                             double* out) {
  constexpr int64_t columns = Isa::columns * kWide;
  for (int64_t j = 0; j < q.side; j += columns)
    for (int64_t i = 0; i < j + columns; i += Isa::rows) tile<Isa::rows, Isa::columns>(q, a, b, factor, i, j, out);
  for (int64_t i = 0; i < q.m; ++i) out[i * q.next + i] += diagonal;
  for (int64_t block = 0; block < q.side; block += kWide)
    for (int64_t i = block; i < q.side; ++i)
      for (int64_t j = block; j < block + kWide && j < i; ++j) out[i * q.next + j] = out[j * q.next + i];
}

// An approximate inverse z of y after `steps` of z <- z f(p), p = y z, f(p) = (13 I - p (15 I - p (7 I - p))) / 4,
// from z = y^T / (the largest sum of a column).  p itself is taken on by p <- p f(p): computed anew from a mirrored z
// it would not commute with y, and the error would grow by the condition of y in each step.  y and the four spare
// squares are overwritten; one of them is returned.
template <class Isa>
ATTNKIT_INLINE const double* invert(const Square& q, double* y, int64_t steps, double* const* spare) {
  double *z = spare[0], *p = spare[1], *t = spare[2], *u = spare[3];
  double largest = 0;
  for (int64_t i = 0; i < q.m; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < q.m; ++j) sum += y[i * q.next + j];
    largest = sum > largest ? sum : largest;
  }
  for (int64_t i = 0; i < q.count(); ++i) z[i] = y[i] / largest;
  multiply<Isa>(q, y, z, 1, 0, p);
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t i = 0; i < q.count(); ++i) t[i] = -p[i];
    for (int64_t i = 0; i < q.m; ++i) t[i * q.next + i] += 7;
    multiply<Isa>(q, p, t, -1, 15, u);
    multiply<Isa>(q, p, u, -0.25, 3.25, t);
    multiply<Isa>(q, z, t, 1, 0, u);
    std::swap(z, u);
    if (step + 1 == steps) break;
    multiply<Isa>(q, p, t, 1, 0, y);
    std::swap(p, y);
  }
  return z;
}

}  // namespace skyformer
