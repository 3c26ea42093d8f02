// Luna in float64 as the paper writes it: whole matrices, no running sums, for one batch row.
#pragma once
#include <cmath>
#include <string>

#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace attnkit::test {

// A projection as y = x W + b, W [in][out].
struct Affine {
  Matrix w;
  Row b;
};

struct Weights {
  Affine pq, k, v;
  Row scale, shift;  // of the norm
};

inline Row project(const Row& x, const Affine& f) {
  Row y = f.b;
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t o = 0; o < y.size(); ++o) y[o] += x[i] * f.w[i][o];
  return y;
}

inline Matrix project(const Matrix& x, const Affine& f) {
  Matrix y;
  for (const auto& row : x) y.push_back(project(row, f));
  return y;
}

// softmax(q k^T / sqrt d) v by head, the heads beside each other; q of no keys gives zeros.
inline Matrix attend(const Matrix& q, const Matrix& k, const Matrix& v, size_t heads) {
  Matrix out;
  for (const auto& row : q) {
    out.emplace_back(v.empty() ? 0 : v[0].size());
    for (size_t h = 0; h < heads && !k.empty(); ++h) {
      const size_t d = row.size() / heads, e = v[0].size() / heads;
      Row w;
      for (const auto& key : k) {
        double dot = 0;
        for (size_t f = h * d; f < (h + 1) * d; ++f) dot += row[f] * key[f];
        w.push_back(dot / std::sqrt(static_cast<double>(d)));
      }
      w = softmax(w);
      for (size_t j = 0; j < k.size(); ++j)
        for (size_t c = h * e; c < (h + 1) * e; ++c) out.back()[c] += w[j] * v[j][c];
    }
  }
  return out;
}

struct Packed {
  Matrix o, y, p;  // what the queries get, the packed sequence, P'
};

// P has the rows that count; q is X W_q + b, pk and pv the projections of the context.
inline Packed packed(const Matrix& p, const Matrix& q, const Matrix& pk, const Matrix& pv, const Weights& weights,
                     size_t heads, size_t pack_heads) {
  Packed result;
  result.y = attend(project(p, weights.pq), pk, pv, pack_heads);
  result.o = attend(q, project(result.y, weights.k), project(result.y, weights.v), heads);
  for (size_t i = 0; i < p.size() && !weights.scale.empty(); ++i) {
    const size_t width = p[i].size();
    Row x = p[i];
    double mean = 0, variance = 0;
    for (size_t c = 0; c < width; ++c) mean += (x[c] += result.y[i][c]) / static_cast<double>(width);
    for (const double a : x) variance += (a - mean) * (a - mean) / static_cast<double>(width);
    for (size_t c = 0; c < width; ++c)
      x[c] = (x[c] - mean) / std::sqrt(variance + 1e-5) * weights.scale[c] + weights.shift[c];
    result.p.push_back(x);
  }
  return result;
}

inline double activation(const std::string& map, double x) {
  if (map == "elu1") return x > 0 ? x + 1 : std::exp(x);
  if (map == "softplus") return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
  return activation("softplus", x * std::log(2.0)) / std::log(2.0);
}

// One head: q and pq times d^-1/2 here.  Row t sees keys 0 ... t.
inline Matrix causal(const Matrix& pq, const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& pk,
                     const std::string& map) {
  const double scale = 1 / std::sqrt(static_cast<double>(k[0].size()));
  Matrix out, a;  // [s][r]
  for (size_t t = 0; t < q.size(); ++t) {
    const double seen = static_cast<double>(t + 1);
    a.emplace_back();
    for (const auto& row : pq) a.back().push_back(activation(map, scale * dot(pk[t], row)));
    Row w(pq.size());
    for (size_t s = 0; s <= t; ++s) {
      const double product = dot(q[t], k[s]);
      for (size_t r = 0; r < pq.size(); ++r) w[r] += a[s][r] * scale * product / seen;
    }
    if (!w.empty()) w = softmax(w);
    out.emplace_back(v[0].size());
    for (size_t r = 0; r < pq.size(); ++r)
      for (size_t s = 0; s <= t; ++s)
        for (size_t c = 0; c < v[0].size(); ++c) out.back()[c] += w[r] * a[s][r] * v[s][c] / seen;
  }
  return out;
}

}  // namespace attnkit::test
