// The random directions of FAVOR+: blocks of D orthonormal rows, rescaled; the same bytes for a seed on every machine.
#ifndef ATTNKIT_PERFORMER_OMEGA_HPP
#define ATTNKIT_PERFORMER_OMEGA_HPP
#include <attnkit/kernels/random.hpp>
#include <vector>

namespace attnkit::performer {

ATTNKIT_EXACT inline double inner(const double* x, const double* y, int64_t n) {
  ATTNKIT_NO_CONTRACTION
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// Gram-Schmidt of a Gaussian row against `done` orthonormal rows before it.  Twice: once leaves the rounding of a row
// that was nearly in their span.
ATTNKIT_EXACT inline void draw_row(Random& random, double* rows, int64_t done, int64_t d) {
  ATTNKIT_NO_CONTRACTION
  double* row = rows + done * d;
  double size = 0;
  while (size < 1e-6) {
    for (int64_t f = 0; f < d; ++f) row[f] = random.normal();
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t r = 0; r < done; ++r) {
        const double* other = rows + r * d;
        const double share = inner(row, other, d);
        for (int64_t f = 0; f < d; ++f) row[f] -= share * other[f];
      }
    size = std::sqrt(inner(row, row, d));
  }
  for (int64_t f = 0; f < d; ++f) row[f] /= size;
}

// The norm of a Gaussian row of d numbers.
ATTNKIT_EXACT inline double draw_norm(Random& random, int64_t d) {
  ATTNKIT_NO_CONTRACTION
  double square = 0;
  for (int64_t f = 0; f < d; ++f) {
    const double x = random.normal();
    square += x * x;
  }
  return std::sqrt(square);
}

// Writes m rows of d numbers.  Every row has the direction of a Gaussian one; its norm is that of another Gaussian row,
// or d^1/2 when equal_norms.
ATTNKIT_EXACT inline void draw_omega(Random random, bool equal_norms, int64_t m, int64_t d, float* omega) {
  ATTNKIT_NO_CONTRACTION
  std::vector<double> block(static_cast<size_t>(d * d));
  for (int64_t r = 0; r < m; ++r) {
    const int64_t done = r % d;
    draw_row(random, block.data(), done, d);
    const double norm = equal_norms ? std::sqrt(static_cast<double>(d)) : draw_norm(random, d);
    for (int64_t f = 0; f < d; ++f)
      omega[r * d + f] = static_cast<float>(norm * block[static_cast<size_t>(done * d + f)]);
  }
}

}  // namespace attnkit::performer
#endif
