// The iteration by which Nystromformer and Skyformer find a pseudo-inverse, in float64.
#pragma once
#include "support/matrix.hpp"

namespace attnkit::test {

// Starts from a^T over the largest sum of a column.
Matrix pseudo_inverse(const Matrix& a, int64_t iterations);

}  // namespace attnkit::test
