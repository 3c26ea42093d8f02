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

// fresh: the sums begin at zero and not at what C has.
template <class Isa, int R, int C, bool fresh, class T>
ATTNKIT_INLINE void product_tile(const Factor<T>& a, const T* b, int64_t b_row, int64_t inner, T* c, int64_t c_row) {
  constexpr int64_t lanes = Lanes<T>::count;
  Vector<T, Isa> sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int x = 0; x < C; ++x) sums[r][x] = fresh ? Vector<T, Isa>{} : at<Isa>(c + r * c_row + x * lanes);
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

// The tile of rows x columns vectors of C that stays in registers.
template <class Isa>
struct ProductTile {
  static constexpr int rows = Isa::rows, columns = Isa::columns;
};
template <>
struct ProductTile<Avx2> {
  static constexpr int rows = 6, columns = 1;  // 12 of 16 registers: the waits of as many chains fill both multipliers
};

// C vectors of columns, those from x on, of rows [first, c.rows), R at a time; returns the first row that is left.
template <class Isa, int R, int C, bool fresh, class T>
ATTNKIT_INLINE int64_t product_columns(const Factor<T>& a, const Matrix<const T>& b, const Matrix<T>& c, int64_t x,
                                       int64_t first) {
  int64_t i = first;
  for (; i + R <= c.rows; i += R)
    product_tile<Isa, R, C, fresh>({a.data + i * a.row, a.row, a.step}, b.data + x, b.row, b.rows,
                                   c.data + i * c.row + x, c.row);
  return i;
}

// Columns of C, C vectors at a time, of rows [first, c.rows): few vectors of B meet all rows before the next ones are
// read. Returns the first column that is left.
template <class Isa, int R, int C, bool fresh, class T>
ATTNKIT_INLINE int64_t product_rows(const Factor<T>& a, const Matrix<const T>& b, const Matrix<T>& c, int64_t x,
                                    int64_t first) {
  constexpr int64_t width = C * Lanes<T>::count;
  for (; x + width <= c.columns; x += width) product_columns<Isa, R, C, fresh>(a, b, c, x, first);
  return x;
}

// C += A B, or C = A B if fresh; A has the rows of C and the columns that B has rows.
template <class Isa, bool fresh, class T>
ATTNKIT_INLINE void any_product(const Factor<T>& a, const Matrix<const T>& b, const Matrix<T>& c) {
  using Tile = ProductTile<Isa>;
  constexpr int R = Tile::rows, C = Tile::columns;
  const int64_t whole = c.rows / R * R;
  const Matrix<T> tiles{c.data, whole, c.columns, c.row};
  int64_t x = 0;
  if (whole > 0) {
    x = product_rows<Isa, R, C, fresh>(a, b, tiles, 0, 0);
    if constexpr (C > 1) x = product_rows<Isa, R, 1, fresh>(a, b, tiles, x, 0);
  }
  // Rows that are left have chains enough only over more columns.
  int64_t y = 0;
  if (whole < c.rows) {
    y = product_rows<Isa, 1, 4 * C, fresh>(a, b, c, 0, whole);
    if constexpr (C > 1) y = product_rows<Isa, 1, 4, fresh>(a, b, c, y, whole);
    y = product_rows<Isa, 1, 1, fresh>(a, b, c, y, whole);
  }
  // Columns that are left, fewer than a vector.
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < b.rows; ++j)
      for (int64_t column = i < whole ? x : y; column < c.columns; ++column)
        c.data[i * c.row + column] += a.data[i * a.row + j * a.step] * b.data[j * b.row + column];
}

template <class Isa, class T>
ATTNKIT_INLINE void add_product(const Factor<T>& a, const Matrix<const T>& b, const Matrix<T>& c) {
  any_product<Isa, false, T>(a, b, c);
}
// C = A B, whose columns are whole vectors.
template <class Isa, class T>
ATTNKIT_INLINE void set_product(const Factor<T>& a, const Matrix<const T>& b, const Matrix<T>& c) {
  any_product<Isa, true, T>(a, b, c);
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

// Places [begin, end) of a row or a column.
struct Span {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// C += A B over the places spans[r] of each row r of A alone.  Spans begin and end later from row to row.
template <class Real>
void product_within(const Span* spans, const Factor<Real>& a, const Matrix<const Real>& b, const Matrix<Real>& c) {
  const auto part = [&](int64_t r, int64_t rows, int64_t from, int64_t to) {
    if (from < to)
      product<Real>({a.data + r * a.row + from * a.step, a.row, a.step},
                    {b.data + from * b.row, to - from, b.columns, b.row}, {c.data + r * c.row, rows, c.columns, c.row});
  };
  constexpr int64_t kRows = 8;  // which go together where they all have places
  for (int64_t r = 0; r < c.rows; r += kRows) {
    const int64_t stop = std::min(c.rows, r + kRows);
    const Span all{std::min(spans[stop - 1].begin, spans[r].end), spans[r].end};
    for (int64_t i = r; i < stop; ++i) part(i, 1, spans[i].begin, std::min(spans[i].end, all.begin));
    part(r, stop - r, all.begin, all.end);
    for (int64_t i = r; i < stop; ++i) part(i, 1, std::max(spans[i].begin, all.end), spans[i].end);
  }
}

// to[j]: the rows whose spans have place j, for j < n.
inline void turn_spans(const Span* spans, int64_t rows, int64_t n, Span* to) {
  for (int64_t j = 0, begin = 0, end = 0; j < n; to[j++] = {begin, end}) {
    while (begin < rows && spans[begin].end <= j) ++begin;
    while (end < rows && spans[end].begin <= j) ++end;
  }
}

}  // namespace attnkit::simd
#endif
