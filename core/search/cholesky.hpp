// Cholesky's factor of a symmetric matrix.
#pragma once

#include <cstddef>
#include <vector>

namespace attnkit::core::search {

// Makes of a positive definite matrix (n, n), of which the lower half is read, the lower triangle L with L times its
// transpose equal to it; what is above the diagonal stays.  Pivots below 1e-12 count as that.
void cholesky(std::vector<double>& matrix, size_t n);

}  // namespace attnkit::core::search
