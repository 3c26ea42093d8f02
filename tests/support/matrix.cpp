#include "support/matrix.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attnkit::test {

template <class Real>
Row row_of(const BasicArray<Real>& a, int64_t b, int64_t h, int64_t i) {
  Row row;
  for (int64_t c = 0; c < a.width; ++c) row.push_back(a.at(b, h, i, c));
  return row;
}

template <class Real>
Matrix rows_of(const BasicArray<Real>& a, int64_t b, int64_t h, int64_t count) {
  Matrix rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back(row_of(a, b, h, i));
  return rows;
}

double rounded(double x) { return static_cast<float>(x); }

Row rounded(Row row) {
  for (double& x : row) x = rounded(x);
  return row;
}

Matrix rounded(Matrix rows) {
  for (Row& row : rows) row = rounded(std::move(row));
  return rows;
}

template <class Real>
void put(const Matrix& rows, BasicArray<Real>& sequence) {
  sequence.set([&](int64_t, int64_t h, int64_t i, int64_t c) {
    return static_cast<Real>(rows.at(static_cast<size_t>(i)).at(static_cast<size_t>(h * sequence.width + c)));
  });
}

template <class Real>
void put(const Row& numbers, BasicArray<Real>& stored) {
  stored.set(
      [&](int64_t, int64_t, int64_t i, int64_t) { return static_cast<Real>(numbers.at(static_cast<size_t>(i))); });
}

template Row row_of(const Array&, int64_t, int64_t, int64_t);
template Row row_of(const Array64&, int64_t, int64_t, int64_t);
template Matrix rows_of(const Array&, int64_t, int64_t, int64_t);
template Matrix rows_of(const Array64&, int64_t, int64_t, int64_t);
template void put(const Matrix&, Array&);
template void put(const Matrix&, Array64&);
template void put(const Row&, Array&);
template void put(const Row&, Array64&);

Row flat(const Matrix& rows) {
  Row all;
  for (const Row& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t f = 0; f < a.size(); ++f) sum += a[f] * b[f];
  return sum;
}

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), Row(b[0].size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b.size(); ++j)
      for (size_t x = 0; x < b[0].size(); ++x) c[i][x] += a[i][j] * b[j][x];
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a[0].size(), Row(a.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  return t;
}

double log_sum(const Row& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double y : x) sum += std::exp(y - largest);
  return largest + std::log(sum);
}

Row softmax(Row x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& y : x) sum += y = std::exp(y - largest);
  for (double& y : x) y /= sum;
  return x;
}

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

double largest_difference(const Matrix& a, const Matrix& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return std::numeric_limits<double>::infinity();
    for (size_t c = 0; c < a[i].size(); ++c) {
      worst = worse(worst, std::abs(a[i][c] - b[i][c]));
    }
  }
  return worst;
}

}  // namespace attnkit::test
