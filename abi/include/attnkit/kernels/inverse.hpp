// The pseudo-inverse z of a square matrix a by a fixed number of steps, and its gradient, in f64.
//
// From the transpose of a over its largest column sum, z <- 1/4 z (13 I - y (15 I - y (7 I - y))), y = a z, so many
// times.  The steps leave small singular values unconverged, and each multiplies what rounding puts into directions
// that a lacks (equal rows make some) by up to 13 / 4: f32 would show.
#ifndef ATTNKIT_KERNELS_INVERSE_HPP
#define ATTNKIT_KERNELS_INVERSE_HPP
#include <attnkit/kernels/product.hpp>

namespace attnkit {

constexpr int64_t whole_doubles(int64_t n) { return (n + 7) / 8 * 8; }

// C += A B by the machine's instructions, also where a plan computes in f64.
template <class Real>
__attribute__((noinline)) void fast_product(const simd::Factor<Real>& a, const simd::Matrix<const Real>& b,
                                            const simd::Matrix<Real>& c) {
  simd::dispatch(simd::Product<Real>{a, b, c});
}

// Square matrices of n rows, `row` doubles apart; what stands past column n is zero.
struct Square {
  int64_t n, row;
  explicit Square(int64_t side) : n(side), row(whole_doubles(side)) {}
  int64_t size() const { return n * row; }

  void diagonal(double x, double* to) const {
    std::memset(to, 0, static_cast<size_t>(size()) * sizeof(double));
    for (int64_t i = 0; i < n; ++i) to[i * row + i] = x;
  }
  // to += a b.
  void multiply(const double* a, const double* b, double* to) const {
    fast_product<double>({a, row, 1}, {b, n, row, row}, {to, n, row, row});
  }
  // The largest column sum and where it is.
  double largest(const double* a, int64_t& column) const {
    double largest = 0;
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += a[i * row + j];
      if (!(sum > largest)) continue;
      largest = sum;
      column = j;
    }
    return largest;
  }
};

// The first z of the steps.
inline void begin_inverse(const Square& s, const double* a, double* z) {
  int64_t column = 0;
  const double largest = s.largest(a, column);
  s.diagonal(0, z);
  for (int64_t i = 0; i < s.n; ++i)
    for (int64_t j = 0; j < s.n; ++j) z[j * s.row + i] = a[i * s.row + j] / largest;
}

// y = a z, t = 7 I - y, u = -(15 I - y t), w = 13 I + y u.
struct InverseStep {
  double *y, *t, *u, *w;
  void operator()(const Square& s, const double* a, const double* z) const {
    s.diagonal(0, y);
    s.multiply(a, z, y);
    s.diagonal(7, t);
    for (int64_t i = 0; i < s.size(); ++i) t[i] -= y[i];
    s.diagonal(-15, u);
    s.multiply(y, t, u);
    s.diagonal(13, w);
    s.multiply(y, u, w);
  }
};

// z, and what each step makes of it `keep` further on, 0: in place.  work: three squares.
inline void inverse(const Square& s, int64_t steps, const double* a, double* z, int64_t keep, double* work) {
  const InverseStep made{work, work + s.size(), work + 2 * s.size(), work + s.size()};
  begin_inverse(s, a, z);
  for (int64_t step = 0; step < steps; ++step) {
    made(s, a, z);
    s.diagonal(0, made.u);
    s.multiply(z, made.w, made.u);
    z += keep;
    for (int64_t i = 0; i < s.size(); ++i) z[i] = 0.25 * made.u[i];
  }
}

// From the gradient of the last of the `steps` + 1 matrices z, which inverse() kept a square apart, that of a; both
// transposed, which leaves no product with a transposed factor.  given is overwritten.  work: seven squares.
inline void inverse_gradient(const Square& s, int64_t steps, const double* a, const double* z, double* given,
                             double* to, double* work) {
  const int64_t all = s.size();
  const InverseStep made{work, work + all, work + 2 * all, work + 3 * all};
  double *dw = work + 4 * all, *du = work + 5 * all, *dy = work + 6 * all;
  s.diagonal(0, to);
  for (int64_t step = steps; step-- > 0;) {
    const double* old = z + step * all;
    made(s, a, old);
    for (int64_t i = 0; i < all; ++i) given[i] *= 0.25;
    s.diagonal(0, dw);
    s.multiply(given, old, dw);
    s.diagonal(0, du);
    s.multiply(dw, made.y, du);
    s.diagonal(0, dy);
    s.multiply(made.u, dw, dy);
    s.multiply(made.t, du, dy);
    double* dz = dw;
    s.diagonal(0, dz);
    s.multiply(made.w, given, dz);
    s.diagonal(0, given);
    s.multiply(du, made.y, given);
    for (int64_t i = 0; i < all; ++i) dy[i] -= given[i];
    s.multiply(old, dy, to);
    s.multiply(dy, a, dz);
    std::memcpy(given, dz, static_cast<size_t>(all) * sizeof(double));
  }
  int64_t column = 0;
  const double largest = s.largest(a, column);
  double of_sum = 0;
  for (int64_t i = 0; i < s.n; ++i)
    for (int64_t j = 0; j < s.n; ++j) {
      to[j * s.row + i] += given[i * s.row + j] / largest;
      of_sum -= given[i * s.row + j] * z[j * s.row + i] / largest;
    }
  for (int64_t i = 0; i < s.n; ++i) to[column * s.row + i] += of_sum;
}

}  // namespace attnkit
#endif
