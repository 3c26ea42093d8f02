// Latte in float64 as the paper writes it, one head at a time.
#pragma once
#include "support/matrix.hpp"

namespace attnkit::test {

// w_ij = sum_l softmax_l(a_i)_l softmax_j(b_.l)_j over the keys j < seen[i]; the rows of a and b hold one logit per
// latent.
inline Matrix latte(const Matrix& a, const Matrix& b, const std::vector<int64_t>& seen) {
  Matrix w;
  for (size_t i = 0; i < a.size(); ++i) {
    w.emplace_back(b.size());
    const Row own = softmax(a[i]);
    for (size_t l = 0; l < own.size() && seen[i] > 0; ++l) {
      Row column;
      for (size_t j = 0; j < static_cast<size_t>(seen[i]); ++j) column.push_back(b[j][l]);
      column = softmax(column);
      for (size_t j = 0; j < column.size(); ++j) w[i][j] += own[l] * column[j];
    }
  }
  return w;
}

}  // namespace attnkit::test
