// performer's logits for kernels/latents.hpp, which computes its f64 run and its gradient.
//
//   b_jf = w_f . k^_j - |k^_j|^2 / 2,   a_if = w_f . q^_i,   x^ = D^-1/4 x
//   A_if = e^(a_if + m_f - c_i) / x_i,  x_i = sum_f e^(a_if + m_f - c_i) z_if          where every c cancels
//   A_if = (e^(a_if - |q^_i|^2 / 2 - c_i) + feature_eps) / (m g(x_i))                  where it does not
//
// c_i is the largest exponent.  Where m_f is the model's c, it and c_i are constants of the gradient.
#ifndef PLUGINS_PERFORMER_GRADIENT_HPP
#define PLUGINS_PERFORMER_GRADIENT_HPP
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/latents.hpp>

namespace attnkit::performer {

// The fixed parts.
struct FeatureMap {
  int64_t m, d;
  double scale, root;  // D^-1/4, D^-1/2
  double fixed, eps;   // c of stabiliser = fixed; feature_eps
  Guard guard;
  bool cancels, global;  // no c matters; c is the largest projection of a key
};

// omega D^-1/4, as it is and transposed; shared by the workers.
template <class Real>
struct Directions {
  int64_t row, column;
  Real *rows, *columns;  // [m][column], [d][row]
  Directions(Layout& layout, const FeatureMap& map)
      : row(simd::whole_lanes(map.m)),
        column(simd::whole_lanes(map.d)),
        rows(layout.take<Real>(map.m * column)),
        columns(layout.take<Real>(map.d * row)) {}
  void fill(const FeatureMap& map, const View<const float>& omega) const {
    std::fill(rows, rows + map.m * column, Real{0});
    std::fill(columns, columns + map.d * row, Real{0});
    for (int64_t f = 0; f < map.m; ++f)
      for (int64_t i = 0; i < map.d; ++i)
        rows[f * column + i] = columns[i * row + f] = omega.row(f)[i] * static_cast<Real>(map.scale);
  }
};

template <class Real>
struct RandomFeatures {
  static constexpr bool each = false;
  const FeatureMap& map;
  const Directions<Real>& omega;
  Qkv<Real> x;
  const QkvGrad<Real>* g;

  bool follows() const { return map.cancels; }
  Real floor() const { return static_cast<Real>(map.eps); }

  void query_logits(int64_t b, int64_t h, int64_t from, int64_t n, Real* rows, int64_t row) const {
    project(x.q.row(b, h, from), x.q.next, n, rows, row);
  }
  void key_logits(int64_t b, int64_t h, int64_t from, int64_t n, Real* rows, int64_t row) const {
    project(x.k.row(b, h, from), x.k.next, n, rows, row);
    for (int64_t j = 0; j < n; ++j) {
      const Real half = half_square<simd::Baseline>(x.k.row(b, h, from + j));
      for (int64_t f = 0; f < map.m; ++f) rows[j * row + f] -= half;
    }
  }
  void query_gradient(int64_t b, int64_t h, int64_t from, int64_t n, const Real* rows, int64_t row) const {
    gradient(x.q, g->q, b, h, from, n, rows, row);
  }
  void key_gradient(int64_t b, int64_t h, int64_t from, int64_t n, const Real* rows, int64_t row) const {
    gradient(x.k, g->k, b, h, from, n, rows, row);
  }
  // c; rows: room for kBlock rows.
  Real constant(int64_t b, int64_t h, int64_t keys, Real* rows, int64_t row) const {
    if (!map.global) return static_cast<Real>(map.fixed);
    Real most = -std::numeric_limits<Real>::infinity();
    for (int64_t j = 0; j < keys; j += latents::kBlock) {
      const int64_t n = std::min(latents::kBlock, keys - j);
      project(x.k.row(b, h, j), x.k.next, n, rows, row);
      for (int64_t i = 0; i < n; ++i) most = std::max(most, latents::largest<simd::Baseline>(rows + i * row, map.m));
    }
    return most;
  }

  template <class Isa>
  ATTNKIT_INLINE latents::Mixed<Real> mix(int64_t b, int64_t h, int64_t i, const Real* z, const Real* m,
                                          Real* a) const {
    if (map.cancels) {
      for (int64_t f = 0; f < map.m; ++f) a[f] += m[f];
      const Real top = latents::largest<Isa>(a, map.m);
      for (int64_t f = 0; f < map.m; ++f) a[f] -= top;
      latents::exponentials<Isa>(a, omega.row);
      const Real sum = simd::dot<Isa>(a, z, map.m);
      for (int64_t f = 0; f < map.m; ++f) a[f] /= sum;
      return {1, 0};
    }
    const Real top = latents::largest<Isa>(a, map.m) + half_square<Isa>(x.q.row(b, h, i)),
               share = 1 / static_cast<Real>(map.m);
    for (int64_t f = 0; f < map.m; ++f) a[f] -= top;
    latents::exponentials<Isa>(a, omega.row);
    for (int64_t f = 0; f < map.m; ++f) a[f] = (a[f] + floor()) * share;
    const Real sum = simd::dot<Isa>(a, z, map.m), den = map.guard(sum);
    for (int64_t f = 0; f < map.m; ++f) a[f] /= den;
    return {map.guard.slope(sum), floor() * share / den};
  }

 private:
  void project(const Real* from, int64_t next, int64_t n, Real* rows, int64_t row) const {
    std::fill(rows, rows + n * row, Real{0});
    simd::product<Real>({from, next}, {omega.columns, map.d, row, row}, {rows, n, row, row});
  }
  template <class Isa>
  ATTNKIT_INLINE Real half_square(const Real* from) const {
    return simd::dot<Isa>(from, from, map.d) * static_cast<Real>(map.root) / 2;
  }
  // From those of exponents w_f . x^ - |x^|^2 / 2, the gradients of n rows x; they arrive as zeros.
  void gradient(const View<const Real>& of, const View<Real>& to, int64_t b, int64_t h, int64_t from, int64_t n,
                const Real* rows, int64_t row) const {
    simd::product<Real>({rows, row}, {omega.rows, map.m, map.d, omega.column}, {to.row(b, h, from), n, map.d, to.next});
    for (int64_t i = 0; i < n; ++i) {
      const Real sum = latents::total<simd::Baseline>(rows + i * row, map.m) * static_cast<Real>(map.root);
      for (int64_t c = 0; c < map.d; ++c) to.row(b, h, from + i)[c] -= sum * of.row(b, h, from + i)[c];
    }
  }
};

}  // namespace attnkit::performer
#endif
