// The gradient of skyformer, and its run in f64.
//
// o = A_Q U, U = W S, W = delta Z delta, S = A_K^T v; with G the gradient of o:
//
//   dU = A_Q^T G,   dA_Q = G U^T,   dW = dU S^T,   dS = W^T dU,   dA_K = v dS^T,   dv = A_K dS
//   dZ = delta dW delta, and through the steps of the inverse that of delta M delta; M's has its own through delta
//   A = k(x, y):   dx -= s^2 dA A (x - y),   dy += the same
//
// Samples are rows of Q and K, and give what they get to these.  Matrices of the samples are f64, as in the run.
#pragma once
#include <attnkit/kernels/inverse.hpp>
#include <attnkit/kernels/scores.hpp>

#include "model.hpp"

namespace skyformer {

using attnkit::fast_product;
using attnkit::in_vectors;
using attnkit::transpose_rows;
using attnkit::View;
namespace simd = attnkit::simd;

constexpr int64_t kBlock = 64;  // rows of A at a time

// Scratch of a worker.
template <class Real>
struct GradientScratch {
  Real *x, *xt, *dx;                                     // samples [m][D], transposed [D][padded], their gradient
  Real *s, *u, *ds, *du;                                 // [m][E]
  Real* t;                                               // U or dS, transposed: [E][padded]
  Real *weights, *given;                                 // a block of A and its gradient, [kBlock][padded]
  Real* unasked;                                         // [D], a row that is not asked for
  double *in, *out, *transposed, *delta, *ddelta, *row;  // [m][E] twice, [E][m], [m] twice, [D]
  double *kernel, *a, *w, *dw, *da, *work, *z;           // squares: M, delta M delta, W, ...; z after each step
  GradientScratch(attnkit::Layout& layout, const Model& m) {
    const attnkit::Square square(m.m);
    for (Real** part : {&x, &dx}) *part = layout.take<Real>(m.m * m.d);
    xt = layout.take<Real>(m.d * m.padded());
    for (Real** part : {&s, &u, &ds, &du}) *part = layout.take<Real>(m.m * m.e);
    t = layout.take<Real>(m.e * m.padded());
    for (Real** part : {&weights, &given}) *part = layout.take<Real>(kBlock * m.padded());
    unasked = layout.take<Real>(m.d);
    for (double** part : {&in, &out, &transposed}) *part = layout.take<double>(m.m * m.e);
    for (double** part : {&delta, &ddelta}) *part = layout.take<double>(m.m);
    row = layout.take<double>(m.d);
    for (double** part : {&kernel, &a, &w, &dw, &da}) *part = layout.take<double>(square.size());
    work = layout.take<double>(7 * square.size());
    z = layout.take<double>((m.steps + 1) * square.size());
  }
};

// One head of one batch row.
template <class Real>
struct GradientHead {
  const Model& model;
  int64_t b, h, queries, keys;
  const attnkit::Qkv<Real>& x;
  const float* places;
  const GradientScratch<Real>& p;

  int64_t m = model.m, d = model.d, e = model.e, padded = model.padded();
  attnkit::Square square{m};
  double power = -0.5 * model.scale * model.scale;  // of |x - y|^2

  // Calls body(from, rows) for blocks of n rows.
  template <class Body>
  static void blocks(int64_t n, const Body& body) {
    for (int64_t i = 0; i < n; i += kBlock) body(i, std::min(kBlock, n - i));
  }

  // weights = k(rows, samples), by differences as in the run.
  void weigh(const View<const Real>& rows, int64_t from, int64_t n) const {
    const auto factor = static_cast<Real>(power);
    in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
      for (int64_t i = 0; i < n; ++i) {
        const Real* row = rows.row(b, h, from + i);
        Real* weights = p.weights + i * padded;
        std::fill(weights, weights + m, Real{0});
        for (int64_t f = 0; f < d; ++f)
          for (int64_t t = 0; t < m; ++t) {
            const Real apart = p.xt[f * padded + t] - row[f];
            weights[t] += apart * apart;
          }
        attnkit::weigh<decltype(isa)>(weights, m, factor, Real{0});
      }
    });
  }

  // to += weights^T rows, [m][E].
  void sum(const View<const Real>& rows, int64_t from, int64_t n, Real* to) const {
    simd::product<Real>({p.weights, 1, padded}, {rows.row(b, h, from), n, e, rows.next}, {to, m, e, e});
  }

  // to += a from, [m][E], in f64.
  void multiply(const simd::Factor<double>& a, const Real* from, Real* to) const {
    std::copy(from, from + m * e, p.in);
    std::fill(p.out, p.out + m * e, 0.0);
    fast_product<double>(a, {p.in, m, e, e}, {p.out, m, e, e});
    std::copy(p.out, p.out + m * e, to);
  }

  // U with all that it is made of.
  void prepare() const {
    for (int64_t i = 0; i < m; ++i) {
      const Sample at(places[i], queries, keys);
      const Real* row = (at.query ? x.q : x.k).row(b, h, at.row);
      std::copy(row, row + d, p.x + i * d);
    }
    transpose_rows(p.x, d, m, d, p.xt, padded);
    square.diagonal(model.gamma, p.kernel);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        double apart = 0;
        for (int64_t f = 0; f < d; ++f) {
          const double by = double{p.x[i * d + f]} - double{p.x[j * d + f]};
          apart += by * by;
        }
        at(p.kernel, i, j) += std::exp(power * apart);
        at(p.kernel, j, i) = at(p.kernel, i, j);
      }
    for (int64_t i = 0; i < m; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < m; ++j) sum += at(p.kernel, i, j);
      p.delta[i] = 1 / std::sqrt(sum);
    }
    scale(p.kernel, p.a);
    attnkit::inverse(square, model.steps, p.a, p.z, square.size(), p.work);
    scale(inverse(), p.w);
    std::fill(p.s, p.s + m * e, Real{0});
    blocks(keys, [&](int64_t j, int64_t n) {
      weigh(x.k, j, n);
      sum(x.v, j, n, p.s);
    });
    multiply({p.w, square.row}, p.s, p.u);
  }
  double& at(double* a, int64_t i, int64_t j) const { return a[i * square.row + j]; }
  const double* inverse() const { return p.z + model.steps * square.size(); }
  // to = delta a delta.
  void scale(const double* a, double* to) const {
    square.diagonal(0, to);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < m; ++j) at(to, i, j) = p.delta[i] * p.delta[j] * a[i * square.row + j];
  }

  void write(const View<Real>& o) const {
    prepare();
    blocks(queries, [&](int64_t i, int64_t n) {
      weigh(x.q, i, n);
      for (int64_t r = 0; r < n; ++r) std::fill(o.row(b, h, i + r), o.row(b, h, i + r) + e, Real{0});
      simd::product<Real>({p.weights, padded}, {p.u, m, e, e}, {o.row(b, h, i), n, e, o.next});
    });
  }

  void operator()(const attnkit::QkvGrad<Real>& g) const {
    prepare();
    std::fill(p.dx, p.dx + m * d, Real{0});
    std::fill(p.du, p.du + m * e, Real{0});
    transpose_rows(p.u, e, m, e, p.t, padded);
    blocks(queries, [&](int64_t i, int64_t n) {
      weigh(x.q, i, n);
      sum(g.o, i, n, p.du);
      give(x.q, g.o, i, n, g.q);
    });
    multiply({p.w, 1, square.row}, p.du, p.ds);
    through_samples();
    transpose_rows(p.ds, e, m, e, p.t, padded);
    blocks(keys, [&](int64_t j, int64_t n) {
      weigh(x.k, j, n);
      if (g.v) simd::product<Real>({p.weights, padded}, {p.ds, m, e, e}, {g.v.row(b, h, j), n, e, g.v.next});
      give(x.k, x.v, j, n, g.k);
    });
    for (int64_t i = 0; i < m; ++i) {
      const Sample at(places[i], queries, keys);
      const View<Real>& to = at.query ? g.q : g.k;
      for (int64_t f = 0; to && f < d; ++f) to.row(b, h, at.row)[f] += p.dx[i * d + f];
    }
  }

  // From the gradient of a block of weights, values t: that of its rows, and of the samples.
  void give(const View<const Real>& rows, const View<const Real>& values, int64_t from, int64_t n,
            const View<Real>& to) const {
    std::fill(p.given, p.given + n * padded, Real{0});
    simd::product<Real>({values.row(b, h, from), values.next}, {p.t, e, padded, padded}, {p.given, n, padded, padded});
    const auto factor = static_cast<Real>(2 * power);
    in_vectors<Real>([&](auto) __attribute__((always_inline)) {
      for (int64_t i = 0; i < n; ++i) {
        const Real* row = rows.row(b, h, from + i);
        Real* const __restrict to_row = to ? to.row(b, h, from + i) : p.unasked;
        for (int64_t t = 0; t < m; ++t) {
          const Real c = factor * p.given[i * padded + t] * p.weights[i * padded + t];
          const Real* sample = p.x + t * d;
          Real* __restrict to_sample = p.dx + t * d;
          for (int64_t f = 0; f < d; ++f) {
            const Real move = c * (row[f] - sample[f]);
            to_row[f] += move;
            to_sample[f] -= move;
          }
        }
      }
    });
  }

  // From the gradient of U that of the samples through W.  Squares of gradients are transposed.
  void through_samples() const {
    for (int64_t t = 0; t < m; ++t)
      for (int64_t c = 0; c < e; ++c) p.transposed[c * m + t] = double{p.du[t * e + c]};
    std::copy(p.s, p.s + m * e, p.in);
    square.diagonal(0, p.dw);
    fast_product<double>({p.in, e}, {p.transposed, e, m, m}, {p.dw, m, m, square.row});
    std::fill(p.ddelta, p.ddelta + m, 0.0);
    unscale(inverse(), p.dw);
    attnkit::inverse_gradient(square, model.steps, p.a, p.z, p.dw, p.da, p.work);
    unscale(p.kernel, p.da);
    for (int64_t i = 0; i < m; ++i) {
      const double of_sum = -0.5 * p.delta[i] * p.delta[i] * p.delta[i] * p.ddelta[i];
      for (int64_t j = 0; j < m; ++j) at(p.da, j, i) += of_sum;
    }
    for (int64_t i = 0; i < m; ++i) {
      std::fill(p.row, p.row + d, 0.0);
      for (int64_t j = 0; j < m; ++j) {
        const double c = 2 * power * (at(p.da, i, j) + at(p.da, j, i)) * at(p.kernel, i, j);
        for (int64_t f = 0; f < d; ++f) p.row[f] += c * (double{p.x[i * d + f]} - double{p.x[j * d + f]});
      }
      for (int64_t f = 0; f < d; ++f) p.dx[i * d + f] += static_cast<Real>(p.row[f]);
    }
  }
  // From the gradient of delta a delta: that of delta is added, and it becomes that of a.
  void unscale(const double* a, double* given) const {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < m; ++j) {
        double& of = at(given, i, j);
        const double weighed = of * a[j * square.row + i];
        p.ddelta[i] += weighed * p.delta[j];
        p.ddelta[j] += weighed * p.delta[i];
        of *= p.delta[i] * p.delta[j];
      }
  }
};

}  // namespace skyformer
