// The product of two matrices.
//
// Every element is one chain of additions in the order of the inner index, whatever the tiling: results do not depend
// on how many rows a block has or on where an inner range was cut.
#ifndef ATTNKIT_KERNELS_PRODUCT_HPP
#define ATTNKIT_KERNELS_PRODUCT_HPP
#include <attnkit/kernels/simd.hpp>

namespace attnkit::simd {

// The left one of two factors: element (i, j) stands at data[i * row + j * step].
template <class T>
struct Factor {
  const T* data;
  int64_t row, step = 1;
};

// Element (i, j) stands at data[i * row + j].
template <class T>
struct Matrix {
  T* data;
  int64_t rows, columns, row;
};

template <class Isa, int R, int C, class T>
ATTNKIT_INLINE void product_tile(const Factor<T>& a, const T* b, int64_t b_row, int64_t inner, T* c, int64_t c_row) {
  constexpr int64_t lanes = Lanes<T>::count;
  Vector<T, Isa> sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int x = 0; x < C; ++x) sums[r][x] = at<Isa>(c + r * c_row + x * lanes);
  for (int64_t j = 0; j < inner; ++j) {
    Vector<T, Isa> row[C];
#pragma GCC unroll 8
    for (int x = 0; x < C; ++x) row[x] = at<Isa>(b + j * b_row + x * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int x = 0; x < C; ++x) sums[r][x] += a.data[r * a.row + j * a.step] * row[x];
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int x = 0; x < C; ++x) store(sums[r][x], c + r * c_row + x * lanes);
}

// Columns [0, columns) of R rows.
template <class Isa, int R, int C, class T>
ATTNKIT_INLINE void product_rows(const Factor<T>& a, const T* b, int64_t b_row, int64_t inner, int64_t columns, T* c,
                                 int64_t c_row) {
  constexpr int64_t lanes = Lanes<T>::count;
  int64_t x = 0;
  for (; x + C * lanes <= columns; x += C * lanes) product_tile<Isa, R, C>(a, b + x, b_row, inner, c + x, c_row);
  if constexpr (C > 4)
    for (; x + 4 * lanes <= columns; x += 4 * lanes) product_tile<Isa, R, 4>(a, b + x, b_row, inner, c + x, c_row);
  if constexpr (C > 1)
    for (; x + lanes <= columns; x += lanes) product_tile<Isa, R, 1>(a, b + x, b_row, inner, c + x, c_row);
  for (int64_t r = 0; r < R && x < columns; ++r)
    for (int64_t j = 0; j < inner; ++j)
      for (int64_t y = x; y < columns; ++y) c[r * c_row + y] += a.data[r * a.row + j * a.step] * b[j * b_row + y];
}

// C += A B; A has the rows of C and the columns that B has rows.
template <class Isa, class T>
ATTNKIT_INLINE void add_product(Factor<T> a, const Matrix<const T>& b, const Matrix<T>& c) {
  int64_t i = 0;
  for (; i + Isa::rows <= c.rows; i += Isa::rows, a.data += Isa::rows * a.row)
    product_rows<Isa, Isa::rows, Isa::columns>(a, b.data, b.row, b.rows, c.columns, c.data + i * c.row, c.row);
  for (; i < c.rows; ++i, a.data += a.row)
    product_rows<Isa, 1, 4 * Isa::columns>(a, b.data, b.row, b.rows, c.columns, c.data + i * c.row, c.row);
}

// C += A^T B; A has the rows of B and the columns that C has rows.
template <class Isa, class T>
ATTNKIT_INLINE void add_transposed_product(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& c) {
  add_product<Isa, T>({a.data, 1, a.row}, b, c);
}

// C += A B for code that is compiled once: chooses its instructions at run time, where the callers of add_product have
// done so already.
template <class Real>
struct Product {
  const Factor<Real>& a;
  const Matrix<const Real>& b;
  const Matrix<Real>& c;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    add_product<Isa, Real>(a, b, c);
  }
};
template <class Real>
__attribute__((noinline)) void product(const Factor<Real>& a, const Matrix<const Real>& b, const Matrix<Real>& c) {
  dispatch_real<Real>(Product<Real>{a, b, c});
}

}  // namespace attnkit::simd
#endif
