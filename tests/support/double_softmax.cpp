#include "support/double_softmax.hpp"

#include <cmath>
#include <map>
#include <memory>

#include "support/softmax.hpp"

namespace attnkit::test {

namespace {

// For each feature the log of the sum of e^k over the first `count` keys.
Row logs_of(const Matrix& keys, int64_t count) {
  Row logs;
  for (size_t f = 0; f < keys[0].size(); ++f) {
    Row column;
    for (int64_t j = 0; j < count; ++j) column.push_back(keys[static_cast<size_t>(j)][f]);
    logs.push_back(log_sum(column));
  }
  return logs;
}

double weight_of(const Row& q, const Row& k, const Row& logs) {
  const double own = log_sum(q);
  double weight = 0;
  for (size_t f = 0; f < q.size(); ++f) weight += std::exp((q[f] - own) + (k[f] - logs[f]));
  return weight;
}

Row scaled_by(double scale, Row row) {
  for (double& x : row) x *= scale;
  return row;
}

}  // namespace

WeightOf double_softmax(const std::string& q_port, const std::string& k_port, bool scaled) {
  return [=](const Mechanism& m, Inputs& in, const Scene& scene, const Call&) -> Weight {
    const Array &q = in[q_port], &k = in[k_port];
    const auto known = std::make_shared<std::map<std::vector<int64_t>, Row>>();  // logs by row, head and keys seen
    const double scale = scaled ? 1 / std::sqrt(static_cast<double>(m.block().d_model) / m.block().heads) : 1;
    return [&q, &k, scene, known, scale](int64_t b, int64_t h, int64_t i, int64_t j) {
      int64_t count = 0;
      for (int64_t t = 0; t < scene.keys; ++t) count += scene.sees(b, i, t);
      Row& logs = (*known)[{b, h, count}];
      if (logs.empty()) {
        Matrix keys = rows_of(k, b, h, count);
        for (Row& row : keys) row = scaled_by(scale, row);
        logs = logs_of(keys, count);
      }
      return weight_of(scaled_by(scale, row_of(q, b, h, i)), scaled_by(scale, row_of(k, b, h, j)), logs);
    };
  };
}

RowWeight double_softmax(const Golden& g, bool rounds) {
  const Matrix keys = rounds ? rounded(g.k) : g.k;
  return [keys, causal = g.causal](const Row& q, const Row& k, int64_t i, int64_t) {
    return weight_of(q, k, logs_of(keys, causal ? i + 1 : static_cast<int64_t>(keys.size())));
  };
}

}  // namespace attnkit::test
