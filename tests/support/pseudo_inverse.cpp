#include "support/pseudo_inverse.hpp"

#include <algorithm>

namespace attnkit::test {

namespace {

// x I - a.
Matrix from_identity(double x, Matrix a) {
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a.size(); ++j) a[i][j] = (i == j ? x : 0) - a[i][j];
  return a;
}

Matrix over(Matrix a, double x) {
  for (Row& row : a)
    for (double& y : row) y /= x;
  return a;
}

}  // namespace

Matrix pseudo_inverse(const Matrix& a, int64_t iterations) {
  Matrix z = transposed(a);
  double largest = 0;
  for (const Row& column : z) {
    double sum = 0;
    for (const double x : column) sum += x;
    largest = std::max(largest, sum);
  }
  z = over(z, largest);
  for (int64_t step = 0; step < iterations; ++step) {
    const Matrix y = times(a, z);
    z = over(times(z, from_identity(13, times(y, from_identity(15, times(y, from_identity(7, y)))))), 4);
  }
  return z;
}

}  // namespace attnkit::test
