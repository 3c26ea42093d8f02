// latte as one float64 weight per pair of query and key, for its test: no recursion and no running maximum.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "support/golden.hpp"
#include "support/suite.hpp"

namespace attnkit::test {

using Row = std::vector<double>;

// log of the sum of e^x over these numbers.
inline double log_sum(const Row& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double y : x) sum += std::exp(y - largest);
  return largest + std::log(sum);
}

// For each latent the log of the sum of e^b over the first `count` positions.
inline Row logs_of(const Matrix& b, int64_t count) {
  Row logs;
  for (size_t l = 0; l < b[0].size(); ++l) {
    Row column;
    for (int64_t j = 0; j < count; ++j) column.push_back(b[static_cast<size_t>(j)][l]);
    logs.push_back(log_sum(column));
  }
  return logs;
}

// sum_l softmax_l(a)_l softmax_j(b_.l)_j.
inline double weight_of(const Row& a, const Row& b, const Row& logs) {
  const double own = log_sum(a);
  double weight = 0;
  for (size_t l = 0; l < a.size(); ++l) weight += std::exp((a[l] - own) + (b[l] - logs[l]));
  return weight;
}

inline Row row_of(const Array& a, int64_t b, int64_t h, int64_t i, double scale) {
  Row row;
  for (int64_t l = 0; l < a.width; ++l) row.push_back(scale * a.at(b, h, i, l));
  return row;
}

inline Matrix rows_of(const Array& a, int64_t b, int64_t h, double scale) {
  Matrix rows;
  for (int64_t i = 0; i < a.rows; ++i) rows.push_back(row_of(a, b, h, i, scale));
  return rows;
}

inline WeightOf weights(bool scaled) {
  return [scaled](const Mechanism& m, Inputs& in, const Scene& scene, const Call&) -> Weight {
    const Array &q = in["latent_q"], &k = in["latent_k"];
    const auto known = std::make_shared<std::map<std::vector<int64_t>, Row>>();  // logs by row, head and keys seen
    const double scale = scaled ? 1 / std::sqrt(static_cast<double>(m.block().d_model) / m.block().heads) : 1;
    return [&q, &k, scene, known, scale](int64_t b, int64_t h, int64_t i, int64_t j) {
      int64_t count = 0;
      for (int64_t t = 0; t < scene.keys; ++t) count += scene.sees(b, i, t);
      Row& logs = (*known)[{b, h, count}];
      if (logs.empty()) logs = logs_of(rows_of(k, b, h, scale), count);
      return weight_of(row_of(q, b, h, i, scale), row_of(k, b, h, j, scale), logs);
    };
  };
}

}  // namespace attnkit::test
