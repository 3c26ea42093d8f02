// Rows of float64 numbers: what the float64 forms of mechanisms compute with.
#pragma once

#include "support/array.hpp"

namespace attnkit::test {

using Row = std::vector<double>;
using Matrix = std::vector<Row>;

template <class Real>
Row row_of(const BasicArray<Real>& a, int64_t b, int64_t h, int64_t i);
// Rows [0, count) of one head.
template <class Real>
Matrix rows_of(const BasicArray<Real>& a, int64_t b, int64_t h, int64_t count);

// Each number as the nearest f32.
double rounded(double x);
Row rounded(Row row);
Matrix rounded(Matrix rows);

// Into every batch row of a sequence, the heads beside each other in a row.
template <class Real>
void put(const Matrix& rows, BasicArray<Real>& sequence);
// Into a stored tensor, number by number.
template <class Real>
void put(const Row& numbers, BasicArray<Real>& stored);
Row flat(const Matrix& rows);

double dot(const Row& a, const Row& b);
Matrix times(const Matrix& a, const Matrix& b);
Matrix transposed(const Matrix& a);

// The log of the sum of e^x over these numbers, and each e^x over that sum, safe for numbers of any size.
double log_sum(const Row& x);
Row softmax(Row x);

// The iteration by which Nystromformer and Skyformer find a pseudo-inverse, from a^T over the largest sum of a column.
Matrix pseudo_inverse(const Matrix& a, int64_t iterations);

// Infinite where the shapes differ, NaN where a number is.
double largest_difference(const Matrix& a, const Matrix& b);

}  // namespace attnkit::test
