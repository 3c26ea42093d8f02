// Pseudo-inverse of a matrix of softmax rows by a fixed number of steps, in f64.
//
// Six steps leave small singular values unconverged, and each step multiplies what rounding puts into directions that
// the matrix lacks (equal landmarks make some) by up to 13 / 4: f32 would show.
#ifndef ATTNKIT_NYSTROMFORMER_INVERSE_HPP
#define ATTNKIT_NYSTROMFORMER_INVERSE_HPP
#include <attnkit/kernels/attend.hpp>
#include <cmath>

namespace attnkit::nystrom {

constexpr int64_t whole_doubles(int64_t n) { return (n + 7) / 8 * 8; }

// Square matrices of n rows, `row` doubles apart; what stands past column n is zero.
struct Square {
  int64_t n, row;
  explicit Square(int64_t side) : n(side), row(whole_doubles(side)) {}
  int64_t size() const { return n * row; }

  ATTNKIT_INLINE void diagonal(double x, double* to) const {
    std::memset(to, 0, static_cast<size_t>(size()) * sizeof(double));
    for (int64_t i = 0; i < n; ++i) to[i * row + i] = x;
  }
  // to += a b.
  template <class Isa>
  ATTNKIT_INLINE void multiply(const double* a, const double* b, double* to) const {
    simd::add_product<Isa, double>({a, row}, {b, n, row, row}, {to, n, row, row});
  }
};

// Rows of scores become softmax rows.
ATTNKIT_INLINE void soften_rows(const Square& s, double scale, double* a) {
  for (int64_t i = 0; i < s.n; ++i) {
    double *x = a + i * s.row, max = -__builtin_inf(), sum = 0;
    for (int64_t j = 0; j < s.n; ++j) {
      x[j] *= scale;
      max = x[j] > max ? x[j] : max;
    }
    for (int64_t j = 0; j < s.n; ++j) sum += x[j] = std::exp(x[j] - max);
    for (int64_t j = 0; j < s.n; ++j) x[j] /= sum;
  }
}

// z = the transpose of a over its largest column sum, the norm that bounds a from below by 1.
ATTNKIT_INLINE void begin_inverse(const Square& s, const double* a, double* z) {
  double largest = 0;
  for (int64_t j = 0; j < s.n; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < s.n; ++i) sum += a[i * s.row + j];
    largest = sum > largest ? sum : largest;
  }
  s.diagonal(0, z);
  for (int64_t i = 0; i < s.n; ++i)
    for (int64_t j = 0; j < s.n; ++j) z[j * s.row + i] = a[i * s.row + j] / largest;
}

// z <- 1/4 z (13 I - y (15 I - y (7 I - y))), y = a z, so many times.  work: three squares.
template <class Isa>
ATTNKIT_INLINE void inverse(const Square& s, int64_t iterations, const double* a, double* z, double* work) {
  double *y = work, *t = y + s.size(), *u = t + s.size();
  begin_inverse(s, a, z);
  for (int64_t step = 0; step < iterations; ++step) {
    s.diagonal(0, y);
    s.multiply<Isa>(a, z, y);
    s.diagonal(7, t);
    for (int64_t i = 0; i < s.size(); ++i) t[i] -= y[i];
    s.diagonal(-15, u);
    s.multiply<Isa>(y, t, u);
    s.diagonal(13, t);
    s.multiply<Isa>(y, u, t);
    s.diagonal(0, u);
    s.multiply<Isa>(z, t, u);
    for (int64_t i = 0; i < s.size(); ++i) z[i] = 0.25 * u[i];
  }
}

}  // namespace attnkit::nystrom
#endif
