// The gradient of nystromformer, and its run in f64.
//
// O = F U with U = Z (B V); with G the gradient of O and dP those of softmaxes P as kernels/scores.hpp has them:
//
//   dU = F^T G,   dF = G U^T,   dZ = dU (B V)^T,   d(B V) = Z^T dU,   dB = d(B V) V^T,   dV = B^T d(B V)
//   dA through the steps of the inverse, each made again; what the softmaxes give the landmarks goes, over the length
//   of a segment, to each of its rows.
//
// All of it goes on in f64 where the run does: landmarks, A and Z.
#pragma once
#include <attnkit/kernels/inverse.hpp>
#include <attnkit/kernels/scores.hpp>

#include "landmarks.hpp"

namespace nystromformer {

using attnkit::kScoreRows;
using attnkit::Square;
using attnkit::View;
namespace simd = attnkit::simd;

// Scratch of a worker for rows of up to n queries and m keys.
template <class Real>
struct GradientScratch {
  Real *kt, *vt, *p, *ds;  // of Scores, of keys or landmarks
  // Landmarks and their gradients [l][D]; B V, U and their gradients [l][E].
  Real *q = nullptr, *k = nullptr, *dq = nullptr, *dk = nullptr;
  Real *bv = nullptr, *u = nullptr, *dbv = nullptr, *du = nullptr;
  double *wide_q = nullptr, *wide_k = nullptr, *kt_wide = nullptr;  // landmarks; of keys also transposed, [D][row]
  double *in = nullptr, *out = nullptr, *transposed = nullptr;      // [l][max(D, E)]; [E][row]
  double *a = nullptr, *z = nullptr, *da = nullptr, *dz = nullptr, *work = nullptr;  // squares; z after each step
  GradientScratch(attnkit::Layout& layout, const Shape& s, int64_t n, int64_t m) {
    const bool landmarks = s.segment(std::max(n, m)) > 1;
    const int64_t l = s.landmarks, lanes = simd::whole_lanes(landmarks ? std::max(m, l) : m);
    kt = layout.take<Real>(s.d * lanes);
    vt = layout.take<Real>(s.e * lanes);
    for (Real** part : {&p, &ds}) *part = layout.take<Real>(kScoreRows * lanes);
    if (!landmarks) return;
    const Square square(l);
    for (Real** part : {&q, &k, &dq, &dk}) *part = layout.take<Real>(l * s.d);
    for (Real** part : {&bv, &u, &dbv, &du}) *part = layout.take<Real>(l * s.e);
    for (double** part : {&wide_q, &wide_k}) *part = layout.take<double>(l * s.d);
    kt_wide = layout.take<double>(s.d * square.row);
    for (double** part : {&in, &out}) *part = layout.take<double>(l * std::max(s.d, s.e));
    transposed = layout.take<double>(s.e * square.row);
    for (double** part : {&a, &da, &dz}) *part = layout.take<double>(square.size());
    z = layout.take<double>((s.iterations + 1) * square.size());
    work = layout.take<double>(7 * square.size());
  }
};

// One head of one batch row.
template <class Real>
struct GradientHead {
  const Shape& shape;
  int64_t b, h, queries, keys;
  const attnkit::Qkv<Real>& x;
  View<const Real> conv;
  const GradientScratch<Real>& p;

  int64_t l = shape.landmarks;
  int64_t segment = shape.segment(std::max(queries, keys));
  Square square{l};
  double root = std::sqrt(static_cast<double>(shape.d));
  const double* inverse() const { return p.z + shape.iterations * square.size(); }

  using In = simd::Matrix<const Real>;
  using Out = simd::Matrix<Real>;
  In rows(const View<const Real>& of, int64_t from, int64_t n, int64_t width) const {
    return {of.row(b, h, from), n, width, of.next};
  }
  attnkit::Scores<Real> scores(const In& k, const In& v) const {
    return {k, v, static_cast<Real>(1 / root), p.kt, p.vt};
  }
  attnkit::Scores<Real> of_keys() const { return scores(rows(x.k, 0, keys, shape.d), rows(x.v, 0, keys, shape.e)); }
  // The landmarks that queries attend to.
  attnkit::Scores<Real> of_queries() const {
    return segment > 1 ? scores({p.k, l, shape.d, shape.d}, {p.u, l, shape.e, shape.e}) : of_keys();
  }

  // Calls body(from, rows) for blocks of n rows.
  template <class Body>
  static void blocks(int64_t n, const Body& body) {
    for (int64_t i = 0; i < n; i += kScoreRows) body(i, std::min(kScoreRows, n - i));
  }

  // U = Z B V, with all that it is made of.
  void mix() const {
    means(shape, {0, shape.landmarks}, x.q, b, h, segment, queries, p.wide_q, shape.d, 1);
    means(shape, {0, shape.landmarks}, x.k, b, h, segment, keys, p.wide_k, shape.d, 1);
    std::copy(p.wide_q, p.wide_q + l * shape.d, p.q);
    std::copy(p.wide_k, p.wide_k + l * shape.d, p.k);
    for (int64_t t = 0; t < l; ++t)
      for (int64_t f = 0; f < shape.d; ++f) p.kt_wide[f * square.row + t] = p.wide_k[t * shape.d + f];
    square.diagonal(0, p.a);
    attnkit::fast_product<double>({p.wide_q, shape.d, 1}, {p.kt_wide, shape.d, l, square.row}, {p.a, l, l, square.row});
    softmax_rows(square, 1 / root, p.a);
    attnkit::inverse(square, shape.iterations, p.a, p.z, square.size(), p.work);
    const auto all = of_keys();
    all.transpose();
    blocks(l, [&](int64_t t, int64_t n) {
      all.weigh({p.q + t * shape.d, shape.d}, n, p.p);
      all.mix(p.p, {p.bv + t * shape.e, n, shape.e, shape.e});
    });
    multiply({inverse(), square.row, 1}, p.bv, shape.e, p.u);
  }

  // to = a from, [l][width], in f64.
  void multiply(const simd::Factor<double>& a, const Real* from, int64_t width, Real* to) const {
    std::copy(from, from + l * width, p.in);
    std::fill(p.out, p.out + l * width, 0.0);
    attnkit::fast_product<double>(a, {p.in, l, width, width}, {p.out, l, width, width});
    std::copy(p.out, p.out + l * width, to);
  }

  void write(const View<Real>& o) const {
    if (segment > 1) mix();
    const auto seen = of_queries();
    seen.transpose();
    blocks(queries, [&](int64_t i, int64_t n) {
      seen.weigh({x.q.row(b, h, i), x.q.next}, n, p.p);
      seen.mix(p.p, {o.row(b, h, i), n, shape.e, o.next});
    });
    convolve([&](int64_t i, int64_t j, int64_t u) {
      for (int64_t c = 0; c < shape.e; ++c) o.row(b, h, i)[c] += conv.row(h)[u] * x.v.row(b, h, j)[c];
    });
  }

  // Calls body(i, j, u) where weight u of the filter leads from value j to output i.
  template <class Body>
  void convolve(const Body& body) const {
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t u = 0; u < shape.kernel; ++u)
        if (const int64_t j = i + u - shape.kernel / 2; j >= 0 && j < keys) body(i, j, u);
  }

  // learned: that of the filter.
  void operator()(const attnkit::QkvGrad<Real>& g, Real* learned) const {
    if (segment > 1) {
      mix();
      for (Real* part : {p.dq, p.dk}) std::fill(part, part + l * shape.d, Real{0});
      std::fill(p.du, p.du + l * shape.e, Real{0});
    }
    const Out no_rows{nullptr, 0, 0, 0};
    const Out dk = segment > 1 ? Out{p.dk, l, shape.d, shape.d} : g.k ? whole(g.k, shape.d) : no_rows;
    const Out dv = segment > 1 ? Out{p.du, l, shape.e, shape.e} : g.v ? whole(g.v, shape.e) : no_rows;
    const auto seen = of_queries();
    seen.transpose();
    blocks(queries, [&](int64_t i, int64_t n) {
      give(seen, rows(x.q, i, n, shape.d), rows(g.o, i, n, shape.e),
           g.q ? Out{g.q.row(b, h, i), n, shape.d, g.q.next} : no_rows, dk, dv);
    });
    if (segment > 1) through_landmarks(g);
    convolve([&](int64_t i, int64_t j, int64_t u) {
      const Real *given = g.o.row(b, h, i), *v = x.v.row(b, h, j);
      learned[u] += simd::dot<simd::Baseline>(given, v, shape.e);
      for (int64_t c = 0; g.v && c < shape.e; ++c) g.v.row(b, h, j)[c] += conv.row(h)[u] * given[c];
    });
  }
  Out whole(const View<Real>& to, int64_t width) const { return {to.row(b, h, 0), keys, width, to.next}; }

  // A block of queries of one softmax: adds what they give to those that are asked for.
  void give(const attnkit::Scores<Real>& seen, const In& q, const In& given, const Out& dq, const Out& dk,
            const Out& dv) const {
    seen.weigh({q.data, q.row}, q.rows, p.p);
    seen.differentiate({given.data, given.row}, q.rows, p.p, p.ds);
    if (dq.data) seen.give_queries(p.ds, dq);
    if (dk.data) seen.give_keys(p.ds, q, dk);
    if (dv.data) seen.give_values(p.p, given, dv);
  }

  // From the gradients of U and of the landmarks of keys: the rest.
  void through_landmarks(const attnkit::QkvGrad<Real>& g) const {
    multiply({inverse(), 1, square.row}, p.du, shape.e, p.dbv);
    // That of Z, transposed: B V dU^T.
    for (int64_t t = 0; t < l; ++t)
      for (int64_t c = 0; c < shape.e; ++c) p.transposed[c * square.row + t] = double{p.du[t * shape.e + c]};
    std::copy(p.bv, p.bv + l * shape.e, p.in);
    square.diagonal(0, p.dz);
    attnkit::fast_product<double>({p.in, shape.e, 1}, {p.transposed, shape.e, l, square.row}, {p.dz, l, l, square.row});
    attnkit::inverse_gradient(square, shape.iterations, p.a, p.z, p.dz, p.da, p.work);
    // That of the products of landmarks, transposed as well.
    for (int64_t i = 0; i < l; ++i) {
      double mean = 0;
      for (int64_t j = 0; j < l; ++j) mean += p.a[i * square.row + j] * p.da[j * square.row + i];
      for (int64_t j = 0; j < l; ++j) {
        double& of = p.da[j * square.row + i];
        of = p.a[i * square.row + j] * (of - mean) / root;
      }
    }
    add({p.da, 1, square.row}, p.wide_k, p.dq);
    add({p.da, square.row, 1}, p.wide_q, p.dk);
    const auto all = of_keys();
    all.transpose();
    blocks(l, [&](int64_t t, int64_t n) {
      give(all, {p.q + t * shape.d, n, shape.d, shape.d}, {p.dbv + t * shape.e, n, shape.e, shape.e},
           {p.dq + t * shape.d, n, shape.d, shape.d}, g.k ? whole(g.k, shape.d) : Out{},
           g.v ? whole(g.v, shape.e) : Out{});
    });
    spread(p.dq, queries, g.q);
    spread(p.dk, keys, g.k);
  }
  // to += a from, [l][D], in f64.
  void add(const simd::Factor<double>& a, const double* from, Real* to) const {
    std::copy(to, to + l * shape.d, p.in);
    attnkit::fast_product<double>(a, {from, l, shape.d, shape.d}, {p.in, l, shape.d, shape.d});
    std::copy(p.in, p.in + l * shape.d, to);
  }
  void spread(const Real* landmarks, int64_t n, const View<Real>& to) const {
    for (int64_t i = 0; to && i < n; ++i)
      for (int64_t f = 0; f < shape.d; ++f)
        to.row(b, h, i)[f] += landmarks[i / segment * shape.d + f] / static_cast<Real>(segment);
  }
};

}  // namespace nystromformer
