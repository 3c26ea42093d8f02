// softmax in float64, as the paper writes it: o_i = sum_j p_ij v_j, p_ij = w_ij / sum_j w_ij over the keys j that query
// i sees.
#pragma once
#include <cmath>

#include "support/matrix.hpp"

namespace attnkit::test {

// w_ij = exp(scale q_i . k_j - max), max being any number that keeps the exponential finite, such as the largest score.
inline double weight(const Row& q, const Row& k, double scale, double max = 0) {
  return std::exp(scale * dot(q, k) - max);
}

}  // namespace attnkit::test
