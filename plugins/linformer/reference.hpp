// Linformer in float64 as Eq. 7 writes it, one head at a time.
#pragma once
#include <cmath>

#include "support/matrix.hpp"

namespace attnkit::test {

// sum_j e[t][j] x_j for each t, over the first `count` rows of x.
inline Matrix project(const Matrix& e, const Matrix& x, int64_t count) {
  Matrix out(e.size(), Row(x.empty() ? 0 : x[0].size()));
  for (size_t t = 0; t < e.size(); ++t)
    for (size_t j = 0; j < static_cast<size_t>(count); ++j)
      for (size_t c = 0; c < out[t].size(); ++c) out[t][c] += e[t][j] * x[j][c];
  return out;
}

// o_i = sum_t p_it sum_j F_tj v_j with p_i = softmax_t(D^-1/2 q_i . sum_j E_tj k_j): the weight of key j < seen[i] is
// sum_t p_it F_tj.
inline Matrix linformer(const Matrix& q, const Matrix& k, const Matrix& e, const Matrix& f,
                        const std::vector<int64_t>& seen) {
  Matrix w, keys;
  for (size_t i = 0; i < q.size(); ++i) {
    w.emplace_back(k.size());
    if (seen[i] == 0) continue;
    if (keys.empty() || seen[i] != seen[i - 1]) keys = project(e, k, seen[i]);
    Row p;
    for (const Row& key : keys) p.push_back(dot(q[i], key) / std::sqrt(static_cast<double>(key.size())));
    p = softmax(p);
    for (size_t t = 0; t < p.size(); ++t)
      for (size_t j = 0; j < static_cast<size_t>(seen[i]); ++j) w[i][j] += p[t] * f[t][j];
  }
  return w;
}

}  // namespace attnkit::test
