// leap in float64, as the paper writes it: o_i = sum_j w_ij v_j / g(sum_j w_ij) over the keys j that query i sees.
#pragma once
#include <cmath>

#include "support/matrix.hpp"

namespace attnkit::test {

// One module: sigmoid(W2 ReLU(W1 x + b1) + b2), or sigmoid(W1 x + b1) without W2.
struct Module {
  Matrix w1;
  Row b1, w2, b2;

  double operator()(const Row& x) const {
    double t = 0;
    for (size_t i = 0; i < w1.size(); ++i) {
      double y = b1[i];
      for (size_t f = 0; f < x.size(); ++f) y += w1[i][f] * x[f];
      t += w2.empty() ? y : std::max(y, 0.0) * w2[i];
    }
    return 1 / (1 + std::exp(-(w2.empty() ? t : t + b2[0])));
  }
};

inline Row relu(Row x, double scale = 1) {
  for (double& y : x) y = std::max(y * scale, 0.0);
  return x;
}

// w_ij = (a . b) cos(pi/2 (p - r)) with a = ReLU(s q_i), p = LeaP_q(a), b = ReLU(k_j), r = LeaP_k(b)
inline double weight(const Row& a, double p, const Row& b, double r) {
  return dot(a, b) * std::cos(1.5707963267948966 * (p - r));
}

}  // namespace attnkit::test
