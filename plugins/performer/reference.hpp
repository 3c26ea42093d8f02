// performer in float64, as the paper writes it: rows of features, then o_i = sum_j w_ij v_j / g(sum_j w_ij), w_ij =
// phi(q_i) . phi(k_j), over the keys j that query i sees.
#pragma once
#include <cmath>
#include <memory>

#include "support/golden.hpp"

namespace attnkit::test {

// feature_eps, whether the stabiliser of keys is their largest projection, and what it is otherwise.
struct Form {
  double eps = 0;
  bool global = false;
  double fixed = 0;
};

// omega x D^-1/4 of one row, and the exponents it leads to.
struct Exponents {
  Row projection;
  double half_square;
  Exponents(const Row& x, const Matrix& omega) {
    const double scale = std::pow(static_cast<double>(x.size()), -0.25);
    for (const Row& w : omega) projection.push_back(dot(w, x) * scale);
    half_square = dot(x, x) * scale * scale / 2;
  }
  double most() const { return *std::max_element(projection.begin(), projection.end()); }
  Row features(double stabiliser, double eps) const {
    Row row;
    for (const double p : projection)
      row.push_back((std::exp(p - half_square - stabiliser) + eps) / std::sqrt(static_cast<double>(projection.size())));
    return row;
  }
};

inline Matrix omega_of(const Array& a, int64_t d) {
  Matrix omega(a.data().size() / static_cast<size_t>(d));
  for (size_t f = 0; f < omega.size(); ++f)
    omega[f].assign(a.data().begin() + static_cast<int64_t>(f) * d, a.data().begin() + static_cast<int64_t>(f + 1) * d);
  return omega;
}

// All rows of one head of a sequence.
inline std::vector<Exponents> exponents(const Array& a, int64_t b, int64_t h, const Matrix& omega) {
  std::vector<Exponents> rows;
  for (const Row& x : rows_of(a, b, h, a.rows)) rows.emplace_back(x, omega);
  return rows;
}

// Features of all rows of one head.  Without eps, whatever a query and all its keys are scaled by cancels, so
// exponents are kept and only their sum is taken to e^.
struct Features {
  Form form;
  std::vector<Exponents> q, k;
  Matrix phi_q, phi_k;
  Features(const Form& f, Inputs& in, const Scene& scene, int64_t b, int64_t h) : form(f) {
    const Matrix omega = omega_of(in["omega"], in["q"].width);
    q = exponents(in["q"], b, h, omega);
    k = exponents(in["k"], b, h, omega);
    const int64_t keys = scene.k_len.empty() ? scene.keys : scene.k_len[static_cast<size_t>(b)];
    double c = form.global ? -INFINITY : form.fixed;
    for (int64_t j = 0; j < keys && form.global; ++j) c = std::max(c, k[static_cast<size_t>(j)].most());
    for (const Exponents& row : q) phi_q.push_back(row.features(row.most(), form.eps));
    for (const Exponents& row : k) phi_k.push_back(row.features(c, form.eps));
  }
  double exponent(size_t i, size_t j, size_t f) const {
    return q[i].projection[f] + k[j].projection[f] - k[j].half_square;
  }
};

inline Weight weights(const Form& form, Inputs& in, const Scene& scene) {
  struct Cache {
    std::vector<std::shared_ptr<Features>> heads;
    int64_t row = -1;
    double most = 0;
  };
  const auto cache = std::make_shared<Cache>();
  for (int64_t b = 0; b < scene.batch; ++b)
    for (int64_t h = 0; h < scene.heads; ++h) cache->heads.push_back(std::make_shared<Features>(form, in, scene, b, h));
  const bool cancels = form.eps == 0 && !form.global && form.fixed == 0;
  return [cache, scene, cancels](int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t head = b * scene.heads + h;
    const Features& x = *cache->heads[static_cast<size_t>(head)];
    const auto qi = static_cast<size_t>(i), kj = static_cast<size_t>(j);
    if (!cancels) return dot(x.phi_q[qi], x.phi_k[kj]);
    if (cache->row != head * scene.queries + i) {
      cache->row = head * scene.queries + i;
      cache->most = -INFINITY;
      for (int64_t t = 0; t < scene.keys; ++t)
        for (size_t f = 0; f < x.q[qi].projection.size() && scene.sees(b, i, t); ++f)
          cache->most = std::max(cache->most, x.exponent(qi, static_cast<size_t>(t), f));
    }
    double sum = 0;
    for (size_t f = 0; f < x.q[qi].projection.size(); ++f) sum += std::exp(x.exponent(qi, kj, f) - cache->most);
    return sum;
  };
}

// A golden case's weights with the paper's stabilisers, on its own numbers or on those rounded to f32.
inline RowWeight row_weight(const Golden& g, const Matrix& omega, double eps, bool rounds) {
  const Matrix w = rounds ? rounded(omega) : omega;
  double c = -INFINITY;
  for (const Row& k : rounds ? rounded(g.k) : g.k) c = std::max(c, Exponents(k, w).most());
  return [w, c, eps](const Row& q, const Row& k, int64_t, int64_t) {
    const Exponents own(q, w);
    return dot(own.features(own.most(), eps), Exponents(k, w).features(c, eps));
  };
}

}  // namespace attnkit::test
