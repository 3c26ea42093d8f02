// Rows of float64 numbers: what the float64 forms of mechanisms compute with.
#pragma once
#include "support/array.hpp"

namespace attnkit::test {

using Row = std::vector<double>;
using Matrix = std::vector<Row>;

Row row_of(const Array& a, int64_t b, int64_t h, int64_t i);
// Rows [0, count) of one head.
Matrix rows_of(const Array& a, int64_t b, int64_t h, int64_t count);

// Each number as the nearest f32.
double rounded(double x);
Row rounded(Row row);
Matrix rounded(Matrix rows);

// Into every batch row of a sequence, the heads beside each other in a row.
void put(const Matrix& rows, Array& sequence);
// Into a stored tensor, number by number.
void put(const Row& numbers, Array& stored);
Row flat(const Matrix& rows);

double dot(const Row& a, const Row& b);
Matrix times(const Matrix& a, const Matrix& b);
Matrix transposed(const Matrix& a);

// Infinite where the shapes differ, NaN where a number is.
double largest_difference(const Matrix& a, const Matrix& b);

}  // namespace attnkit::test
