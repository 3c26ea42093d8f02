// Softmax attention of a block of queries to few keys, all of their scores at once, and its gradient.
#ifndef ATTNKIT_KERNELS_SCORES_HPP
#define ATTNKIT_KERNELS_SCORES_HPP
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/gradient.hpp>
#include <cmath>

namespace attnkit {

constexpr int64_t kScoreRows = 64;  // queries of a block

// x = exp(scale x - shift) for n numbers, zeros up to a whole vector of floats; returns their sum.
template <class Isa, class Real>
ATTNKIT_INLINE Real weigh(Real* x, int64_t n, Real scale, Real shift) {
  if constexpr (sizeof(Real) == sizeof(float)) {
    for (int64_t j = n; j % simd::kLanes != 0; ++j) x[j] = -__builtin_inff();
    return simd::weigh<Isa>(x, scale, shift, n);
  } else {
    Real sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += x[j] = std::exp(scale * x[j] - shift);
    return sum;
  }
}

template <class Isa, class Real>
ATTNKIT_INLINE void softmax(Real* x, int64_t n, Real scale) {
  Real max = x[0];
  for (int64_t j = 1; j < n; ++j) max = x[j] > max ? x[j] : max;
  const Real sum = weigh<Isa>(x, n, scale, scale * max);
  for (int64_t j = 0; j < n; ++j) x[j] /= sum;
}

// The keys and values that queries weigh.  Rows of scores are `lanes` apart.
template <class Real>
struct Scores {
  simd::Matrix<const Real> k, v;
  Real scale;
  Real *kt, *vt;  // transposed, [D][lanes] and [E][lanes]
  int64_t lanes = simd::whole_lanes(k.rows);

  void transpose() const {
    transpose_rows(k.data, k.row, k.rows, k.columns, kt, lanes);
    transpose_rows(v.data, v.row, v.rows, v.columns, vt, lanes);
  }

  // p_i = softmax of scale q_i . k.
  void weigh(const simd::Factor<Real>& q, int64_t queries, Real* p) const {
    std::fill(p, p + queries * lanes, Real{0});
    simd::product<Real>(q, {kt, k.columns, lanes, lanes}, {p, queries, lanes, lanes});
    in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
      for (int64_t i = 0; i < queries; ++i) softmax<decltype(isa)>(p + i * lanes, k.rows, scale);
    });
  }

  // o_i = p_i v.
  void mix(const Real* p, const simd::Matrix<Real>& o) const {
    for (int64_t i = 0; i < o.rows; ++i) std::fill(o.data + i * o.row, o.data + i * o.row + o.columns, Real{0});
    simd::product<Real>({p, lanes}, v, o);
  }

  // From the gradient g of o, that of the products q . k: ds_i = scale p_i (g_i . v - sum p_i g_i . v).
  void differentiate(const simd::Factor<Real>& g, int64_t queries, const Real* p, Real* ds) const {
    std::fill(ds, ds + queries * lanes, Real{0});
    simd::product<Real>(g, {vt, v.columns, lanes, lanes}, {ds, queries, lanes, lanes});
    in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
      for (int64_t i = 0; i < queries; ++i) {
        const Real* weights = p + i * lanes;
        Real* to = ds + i * lanes;
        const Real mean = simd::dot<decltype(isa)>(weights, to, k.rows);
        for (int64_t j = 0; j < k.rows; ++j) to[j] = scale * weights[j] * (to[j] - mean);
      }
    });
  }

  // dq += ds k.
  void give_queries(const Real* ds, const simd::Matrix<Real>& dq) const { simd::product<Real>({ds, lanes}, k, dq); }

  // dk += ds^T q, dv += p^T g.
  void give_keys(const Real* ds, const simd::Matrix<const Real>& q, const simd::Matrix<Real>& dk) const {
    simd::product<Real>({ds, 1, lanes}, q, dk);
  }
  void give_values(const Real* p, const simd::Matrix<const Real>& g, const simd::Matrix<Real>& dv) const {
    simd::product<Real>({p, 1, lanes}, g, dv);
  }
};

}  // namespace attnkit
#endif
