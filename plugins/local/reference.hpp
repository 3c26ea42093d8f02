// Sliding windows in float64 as the papers write them, one head at a time.
#pragma once
#include <cmath>

#include "support/matrix.hpp"

namespace attnkit::test {

// |i - j| < w / 2, in causal blocks i - w < j <= i.
inline bool near(bool causal, int64_t w, int64_t i, int64_t j) {
  if (causal) return i - w < j && j <= i;
  return 2 * std::abs(i - j) < w;
}

// The softmax of scale q_i . k_j over those keys j < seen[i] that are near; scale 0 means D^-1/2.
inline Matrix local(const Matrix& q, const Matrix& k, const std::vector<int64_t>& seen, bool causal, int64_t window,
                    double scale) {
  Matrix w;
  for (size_t i = 0; i < q.size(); ++i) {
    w.emplace_back(k.size());
    if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(q[i].size()));
    std::vector<size_t> keys;
    Row scores;
    for (size_t j = 0; j < static_cast<size_t>(seen[i]); ++j)
      if (near(causal, window, static_cast<int64_t>(i), static_cast<int64_t>(j))) {
        keys.push_back(j);
        scores.push_back(scale * dot(q[i], k[j]));
      }
    if (keys.empty()) continue;
    scores = softmax(scores);
    for (size_t t = 0; t < keys.size(); ++t) w[i][keys[t]] = scores[t];
  }
  return w;
}

}  // namespace attnkit::test
