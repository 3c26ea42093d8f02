// S4D-Lin in float64 as the paper defines it: each channel by itself, as the convolution with its kernel.
#pragma once
#include <cmath>
#include <complex>

#include "support/matrix.hpp"

namespace attnkit::test {

using Complex = std::complex<double>;

// The learned numbers of one channel; backward is empty in causal blocks.
struct StateSpace {
  double step, skip;
  std::vector<Complex> a, forward, backward;
};

// K_t = 2 Re sum_n C_n (e^(dA_n) - 1) / A_n e^(dA_n t), for t < count; where A is 0, (e^(dA) - 1) / A is d.
inline Row kernel(const StateSpace& s, const std::vector<Complex>& c, size_t count) {
  Row kernel(count);
  for (size_t n = 0; n < c.size(); ++n) {
    const Complex z = s.step * s.a[n], b = s.a[n] == 0.0 ? s.step : (std::exp(z) - 1.0) / s.a[n];
    for (size_t t = 0; t < count; ++t) kernel[t] += 2 * (c[n] * b * std::exp(z * static_cast<double>(t))).real();
  }
  return kernel;
}

// y_t = sum_(j <= t) K_(t-j) u_j + D u_t, and in both directions + sum_(j > t) K'_(j-t-1) u_j.
inline Row filtered(const StateSpace& s, const Row& u) {
  const Row forward = kernel(s, s.forward, u.size()), backward = kernel(s, s.backward, u.size());
  Row y;
  for (size_t t = 0; t < u.size(); ++t) {
    y.push_back(s.skip * u[t]);
    for (size_t j = 0; j <= t; ++j) y[t] += forward[t - j] * u[j];
    for (size_t j = t + 1; j < u.size(); ++j) y[t] += backward[j - t - 1] * u[j];
  }
  return y;
}

}  // namespace attnkit::test
