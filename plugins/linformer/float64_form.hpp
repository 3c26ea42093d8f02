// Linformer in float64, from the equations: as weights of single keys, and over whole matrices for the golden cases.
#pragma once
#include <cmath>
#include <map>
#include <memory>

#include "support/golden.hpp"
#include "support/softmax.hpp"
#include "support/suite.hpp"

namespace attnkit::test {

// sum_j e[t][j] x_j for each t, of the keys that there are.
inline Matrix project(const Matrix& e, const Matrix& x) {
  Matrix out;
  for (const Row& weights : e) {
    Row sum(x.empty() ? 0 : x[0].size());
    for (size_t j = 0; j < x.size(); ++j)
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += weights[j] * x[j][c];
    out.push_back(sum);
  }
  return out;
}

// softmax over the projected keys.
inline Row probabilities(const Row& q, const Matrix& projected) {
  Row scores;
  for (const Row& k : projected) scores.push_back(dot(q, k) / std::sqrt(static_cast<double>(q.size())));
  return softmax(scores);
}

// The matrix of head h in port e or f, of [rank][n_max] or [H][rank][n_max].
inline Matrix matrix_of(Inputs& in, const char* name, int64_t h) {
  const int at = in.mech->find(name);
  if (at < 0) return matrix_of(in, "e", h);
  const attn_port& port = *in.mech->ports()[static_cast<size_t>(at)];
  const bool by_head = port.ndim == 3;
  const int64_t rank = port.shape[by_head ? 1 : 0], n_max = port.shape[by_head ? 2 : 1];
  Matrix m(static_cast<size_t>(rank));
  for (int64_t t = 0; t < rank; ++t)
    for (int64_t j = 0; j < n_max; ++j)
      m[static_cast<size_t>(t)].push_back(in[name].at(0, 0, ((by_head ? h : 0) * rank + t) * n_max + j, 0));
  return m;
}

// o_i = sum_t p_t (sum_j F_tj v_j): the weight of key j is sum_t p_t F_tj.
inline Weight weights(const Mechanism&, Inputs& in, const Scene& scene, const Call&) {
  struct Memo {
    std::map<std::vector<int64_t>, Matrix> projected;  // by row, head and keys seen
    std::map<std::vector<int64_t>, Row> p;             // by row, head and query
    std::map<int64_t, Matrix> e, f;
  };
  const auto memo = std::make_shared<Memo>();
  for (int64_t h = 0; h < scene.heads; ++h) {
    memo->e[h] = matrix_of(in, "e", h);
    memo->f[h] = matrix_of(in, "f", h);
  }
  return [&in, scene, memo](int64_t b, int64_t h, int64_t i, int64_t j) {
    Row& p = memo->p[{b, h, i}];
    if (p.empty()) {
      int64_t count = 0;
      for (int64_t t = 0; t < scene.keys; ++t) count += scene.sees(b, i, t);
      Matrix& projected = memo->projected[{b, h, count}];
      if (projected.empty()) projected = project(memo->e[h], rows_of(in["k"], b, h, count));
      p = probabilities(row_of(in["q"], b, h, i), projected);
    }
    double weight = 0;
    for (size_t t = 0; t < p.size(); ++t) weight += p[t] * memo->f[h][t][static_cast<size_t>(j)];
    return weight;
  };
}

// The output of one head.
inline Matrix output(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& e, const Matrix& f) {
  const Matrix keys = project(e, k);
  Matrix p;
  for (const Row& query : q) p.push_back(probabilities(query, keys));
  return times(p, project(f, v));
}

// The golden cases mask keys anywhere, which zeroes their rows before they are projected.
inline Matrix masked(const nlohmann::json& in, const char* name) {
  Matrix rows = in[name];
  for (size_t j = 0; j < rows.size() && in.contains("kmask"); ++j)
    if (!in["kmask"][j].get<bool>()) rows[j].assign(rows[j].size(), 0);
  return rows;
}

}  // namespace attnkit::test
