// linear in float64, as the paper writes it: o_i = sum_j w_ij v_j / g(sum_j w_ij) over the keys j that query i sees.
#pragma once
#include <cmath>

#include "support/matrix.hpp"

namespace attnkit::test {

// elu(x) + 1
inline Row elu1(Row x) {
  for (double& y : x) y = y > 0 ? y + 1 : std::exp(y);
  return x;
}

// w_ij = (elu(q_i) + 1) . (elu(k_j) + 1)
inline double weight(const Row& q, const Row& k) { return dot(elu1(q), elu1(k)); }

}  // namespace attnkit::test
