// skyformer in float64 as it is written, for its test: the weight of every key for every query, by whole matrices.
#pragma once
#include <cmath>
#include <numeric>

#include "support/golden.hpp"
#include "support/matrix.hpp"
#include "support/suite.hpp"

namespace attnkit::test {

struct Options {
  int64_t samples = 128, iterations = 6;
  double gamma = 0.1, scale = 0;
  Settings settings() const {
    return {{"samples", samples}, {"iterations", iterations}, {"gamma", gamma}, {"scale", scale}};
  }
};

inline Matrix kernel(const Matrix& x, const Matrix& y, double scale) {
  Matrix a;
  for (const Row& p : x) {
    a.emplace_back();
    for (const Row& q : y) {
      double square = 0;
      for (size_t f = 0; f < p.size(); ++f) square += (scale * p[f] - scale * q[f]) * (scale * p[f] - scale * q[f]);
      a.back().push_back(std::exp(-square / 2));
    }
  }
  return a;
}

inline double scale_of(const Options& options, size_t d) {
  return options.scale != 0 ? options.scale : std::pow(static_cast<double>(d), -0.25);
}

// The weight of every key for every query: A_Q delta Z delta A_K^T.
inline Matrix weights_of(const Matrix& q, const Matrix& k, const std::vector<size_t>& places, const Options& options) {
  const double scale = scale_of(options, q[0].size());
  Matrix both = q, sampled;
  both.insert(both.end(), k.begin(), k.end());
  for (const size_t place : places) sampled.push_back(both[place]);
  Matrix m = kernel(sampled, sampled, scale);
  for (size_t i = 0; i < m.size(); ++i) m[i][i] += options.gamma;
  Row delta;
  for (const Row& row : m) delta.push_back(1 / std::sqrt(std::accumulate(row.begin(), row.end(), 0.0)));
  const auto both_sides = [&delta](Matrix a) {
    for (size_t i = 0; i < a.size(); ++i)
      for (size_t j = 0; j < a.size(); ++j) a[i][j] *= delta[i] * delta[j];
    return a;
  };
  const Matrix middle = both_sides(pseudo_inverse(both_sides(m), options.iterations));
  return times(times(kernel(q, sampled, scale), middle), kernel(sampled, k, scale));
}

}  // namespace attnkit::test
