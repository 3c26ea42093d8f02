// Linformer in float64, from the equations: as weights of single keys, and over whole matrices for the golden cases.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "support/golden.hpp"

namespace attnkit::test {

using Row = std::vector<double>;

// sum_j e[t][j] x_j for each t.
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
  Row p;
  for (const Row& k : projected) {
    double dot = 0;
    for (size_t f = 0; f < q.size(); ++f) dot += q[f] * k[f];
    p.push_back(dot / std::sqrt(static_cast<double>(q.size())));
  }
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - largest);
  for (double& x : p) x /= sum;
  return p;
}

inline Matrix rows_of(const Array& a, int64_t b, int64_t h, int64_t count) {
  Matrix rows(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    for (int64_t c = 0; c < a.width; ++c) rows[static_cast<size_t>(i)].push_back(a.at(b, h, i, c));
  return rows;
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
inline Weight weights(Inputs& in, const Scene& scene) {
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
      p = probabilities(rows_of(in["q"], b, h, i + 1).back(), projected);
    }
    double weight = 0;
    for (size_t t = 0; t < p.size(); ++t) weight += p[t] * memo->f[h][t][static_cast<size_t>(j)];
    return weight;
  };
}

inline const Denominator one = [](double) { return 1.0; };

inline Matrix rounded(Matrix rows) {
  for (Row& row : rows)
    for (double& x : row) x = static_cast<float>(x);
  return rows;
}

// The cases mask keys anywhere, which zeroes their rows before they are projected.
inline Truth golden_truth(const Golden& g, const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& e,
                          const Matrix& f) {
  Truth truth{g.scene(), {}, {}};
  const Matrix keys = project(e, k), values = project(f, v);
  for (const Row& query : q) {
    const Row p = probabilities(query, keys);
    for (size_t c = 0; c < values[0].size(); ++c) {
      double sum = 0;
      for (size_t t = 0; t < p.size(); ++t) sum += p[t] * values[t][c];
      truth.o.push_back(sum);
    }
  }
  return truth;
}

inline Matrix masked(const nlohmann::json& in, const char* name) {
  Matrix rows = in[name];
  for (size_t j = 0; j < rows.size() && in.contains("kmask"); ++j)
    if (!in["kmask"][j].get<bool>()) rows[j].assign(rows[j].size(), 0);
  return rows;
}

inline void put(Array& array, const Matrix& rows) {
  array.set([&](int64_t, int64_t, int64_t i, int64_t c) {
    const auto at = static_cast<size_t>(i), width = rows[0].size();
    return static_cast<float>(array.rows == static_cast<int64_t>(rows.size()) ? rows[at][static_cast<size_t>(c)]
                                                                              : rows[at / width][at % width]);
  });
}

}  // namespace attnkit::test
