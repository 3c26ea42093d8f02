// efficient in float64, as the paper writes it: o_i = sum_j w_ij v_j over the keys j that query i sees.
#pragma once
#include <cmath>

#include "support/matrix.hpp"

namespace attnkit::test {

// w_ij = sum_f softmax_f(q_i)_f softmax_j(k_.f)_j.  sums[f]: log of the sum of e^k_jf over the keys that query i sees.
inline double weight(const Row& q, const Row& k, const Row& sums) {
  const double own = log_sum(q);
  double weight = 0;
  for (size_t f = 0; f < q.size(); ++f) weight += std::exp((q[f] - own) + (k[f] - sums[f]));
  return weight;
}

inline Row column_sums(const Matrix& keys) {
  Row sums;
  for (const Row& column : transposed(keys)) sums.push_back(log_sum(column));
  return sums;
}

}  // namespace attnkit::test
