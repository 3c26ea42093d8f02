// The simpler simple recurrent unit in float64 as the paper defines it: each channel by itself.
#pragma once
#include <cmath>

#include "support/matrix.hpp"

namespace attnkit::test {

// c_t = f_t c_(t-1) + (1 - f_t) (x_t W),   f_t = sigmoid(x_t W_f + b_f),   h_t = relu(c_t), for every row of x.
inline Matrix recurrent(const Matrix& x, const Matrix& w, const Matrix& w_f, const Row& b_f) {
  const size_t d = b_f.size();
  Matrix h;
  Row c(d);
  for (const Row& row : x) {
    Row made(d);
    for (size_t n = 0; n < d; ++n) {
      double value = 0, gate = b_f[n];
      for (size_t k = 0; k < d; ++k) {
        value += row[k] * w[k][n];
        gate += row[k] * w_f[k][n];
      }
      const double f = 1 / (1 + std::exp(-gate));
      c[n] = f * c[n] + (1 - f) * value;
      made[n] = std::fmax(c[n], 0);
    }
    h.push_back(made);
  }
  return h;
}

}  // namespace attnkit::test
