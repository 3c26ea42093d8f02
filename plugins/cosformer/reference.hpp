// cosformer in float64, as the paper writes it: o_i = sum_j w_ij v_j / g(sum_j w_ij) over the keys j that query i sees.
#pragma once
#include <cmath>

#include "support/matrix.hpp"

namespace attnkit::test {

// w_ij = (ReLU(q_i) . ReLU(k_j)) cos(pi/2 (i/N - j/M)), the paper's i and j being i + 1 and j + 1 here.
inline double weight(const Row& q, const Row& k, int64_t i, int64_t j, double n, double m) {
  constexpr double half_pi = 1.5707963267948966;
  double sum = 0;
  for (size_t f = 0; f < q.size(); ++f) sum += std::max(q[f], 0.0) * std::max(k[f], 0.0);
  return sum * std::cos(half_pi * (static_cast<double>(i + 1) / n - static_cast<double>(j + 1) / m));
}

}  // namespace attnkit::test
