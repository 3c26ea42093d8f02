// relu in float64, as the paper writes it: o_i = sum_j w_ij v_j / g(sum_j w_ij) over the keys j that query i sees.
#pragma once
#include "support/matrix.hpp"

namespace attnkit::test {

inline Row relu(Row x) {
  for (double& y : x) y = std::max(y, 0.0);
  return x;
}

// w_ij = ReLU(q_i) . ReLU(k_j)
inline double weight(const Row& q, const Row& k) { return dot(relu(q), relu(k)); }

}  // namespace attnkit::test
