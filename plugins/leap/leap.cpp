// leap: cosine re-weighting with learned proportions instead of positions.
// reference.hpp is the slow form of what follows, as the paper writes it.
//
// Agostinelli, Hong, Chen: LeaPformer: Enabling Linear Transformers for Autoregressive and Simultaneous Tasks via
// Learned Proportions, ICML 2024.
//
//   w_ij = (A_i . B_j) cos(pi/2 (p_i - r_j)),  A = ReLU(s Q), B = ReLU(K),  p_i = LeaP_q(A_i), r_j = LeaP_k(B_j)
//   o_i  = sum_j w_ij v_j / g(sum_j w_ij)
//   LeaP(x) = sigmoid(W2 ReLU(W1 x + b1) + b2),  W1 [r, D], W2 [1, r], r = D / factor;  r = 1: sigmoid(W1 x + b1)
//
// The modules read the row after ReLU and are shared by all heads, or each head has its own (section 3.3).  Cost per
// head: (4 D (E+1) + 2 (D r + r))(N+M) flops; state 2 D (E+1) floats, whatever the length.
#include <attnkit/kernels/dots.hpp>
#include <attnkit/kernels/features.hpp>
#include <attnkit/kernels/linear.hpp>

#include "model.hpp"

namespace {

using attnkit::linear::At;
using attnkit::simd::kLanes;
namespace simd = attnkit::simd;

// One LeaP module in a run: its tensors, whose steps from head to head are 0 where heads share them.
template <class Real>
struct Module {
  int64_t d, r;
  attnkit::View<const Real> w1, b1, w2, b2;

  // y = W1 x + b1, a vector for each 16 units, and what the sigmoid is of.
  template <class Isa>
  ATTNKIT_INLINE Real argument(const Real* x, int64_t h, Real* y) const {
    const Real* bias = b1.row(h);
    Real t = 0;
    simd::Vec<Isa> sums{};
    for (int64_t i = 0; i < r; i += kLanes) {
      const int64_t n = std::min(r - i, kLanes);
      const Real* w = r == 1 ? nullptr : w2.row(0, h, 0) + i;
      if constexpr (std::is_same_v<Real, float>) {
        simd::Vec<Isa> units, biases, weights;
        simd::dots<Isa>(x, w1.row(0, h, i), w1.next, r - i, d, y + i);
        simd::load(y + i, n, units);
        simd::load(bias + i, n, biases);
        units = units + biases;
        simd::store(units, y + i);
        if (r == 1) return y[0];
        simd::load(w, n, weights);
        sums += simd::select(units < 0.0f, simd::Vec<Isa>{}, units) * weights;
      } else {
        for (int64_t j = i; j < i + n; ++j) y[j] = simd::dot<Isa>(x, w1.row(0, h, j), d) + bias[j];
        if (r == 1) return y[0];
        for (int64_t j = 0; j < n; ++j) t += (y[i + j] < 0 ? 0 : y[i + j]) * w[j];
      }
    }
    return t + simd::sum(sums) + b2.row(h)[0];
  }
  // Adds x y^T to C vectors of columns of the gradient of W1, and W1^T y to those of x's.
  template <class Isa, int C>
  ATTNKIT_INLINE void columns(const Real* x, const Real* y, const Real* w, Real* to, Real* learned) const {
    constexpr int64_t lanes = simd::Lanes<Real>::count;
    simd::Vector<Real, Isa> features[C], sums[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) features[c] = simd::at<Isa>(x + c * lanes), sums[c] = simd::at<Isa>(to + c * lanes);
    for (int64_t j = 0; j < r; ++j, w += w1.next, learned += d)
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        simd::store(simd::at<Isa>(learned + c * lanes) + features[c] * y[j], learned + c * lanes);
        sums[c] += simd::at<Isa>(w + c * lanes) * y[j];
      }
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) simd::store(sums[c], to + c * lanes);
  }
  // From the gradient of what the sigmoid is of, given, and y, which it writes over: adds that of x to `to`, those of
  // W1, b1, W2, b2 to learned.
  template <class Isa>
  ATTNKIT_INLINE void gradient(const Real* x, Real* y, int64_t h, Real given, Real* to, Real* learned) const {
    constexpr int64_t lanes = simd::Lanes<Real>::count;
    using V = simd::Vector<Real, Isa>;
    Real *to_b1 = learned + r * d, *to_w2 = to_b1 + r;
    if (r == 1) {
      to_b1[0] += given;
      y[0] = given;
    } else {
      const Real* w = w2.row(0, h, 0);
      int64_t j = 0;
      for (; j + lanes <= r; j += lanes) {
        const V units = simd::at<Isa>(y + j);
        const auto on = units > Real{0};
        simd::store(simd::at<Isa>(to_w2 + j) + given * simd::select(on, units, V{}), to_w2 + j);
        const V unit = simd::select(on, given * simd::at<Isa>(w + j), V{});
        simd::store(simd::at<Isa>(to_b1 + j) + unit, to_b1 + j);
        simd::store(unit, y + j);
      }
      for (; j < r; ++j) {
        // No branch: half of the units are off, which ones no machine foresees.
        const Real out = y[j] > 0 ? y[j] : 0, unit = out > 0 ? given * w[j] : 0;
        to_w2[j] += given * out;
        to_b1[j] += unit;
        y[j] = unit;
      }
      to_w2[r] += given;
    }
    const Real* w = w1.row(0, h, 0);
    int64_t f = 0;
    for (; f + 4 * lanes <= d; f += 4 * lanes) columns<Isa, 4>(x + f, y, w + f, to + f, learned + f);
    for (; f + lanes <= d; f += lanes) columns<Isa, 1>(x + f, y, w + f, to + f, learned + f);
    for (; f < d; ++f)
      for (int64_t j = 0; j < r; ++j) {
        learned[j * d + f] += x[f] * y[j];
        to[f] += w[j * w1.next + f] * y[j];
      }
  }
};

template <class Real>
Module<Real> bind(const leap::ModulePorts& m, const attn_run& run) {
  return {m.d, m.r, {run, m.ports[0]}, {run, m.ports[1]}, {run, m.ports[2]}, {run, m.ports[3]}};
}

struct Leap : leap::Model {
  explicit Leap(const attnkit::linear::Setup& s) : Model(s) {
    s.shape.kept = kUnits + attnkit::simd::whole_lanes(q.r);
    kept_at = s.shape.kept_at();
  }
  static constexpr int64_t kUnits = 4;  // where, behind kept_at, inner units begin
  int64_t kept_at;

  // A module of its own makes other features of a key for each head of queries.
  static bool shares_keys(const attnkit::Values& values) { return values.boolean("shared"); }

  attnkit::Learned learned() const { return list<attnkit::Learned>(); }

  // The map of one run.
  template <class Real>
  struct Bound {
    const Leap& leap;
    Module<Real> q, k;

    attnkit::Learned learned() const { return leap.learned(); }
    // A; and what is kept: first what its proportion is the sigmoid of, last the inner units.
    template <class Isa>
    ATTNKIT_INLINE void features(const Real* x, double scale, const Module<Real>& module, int64_t h, Real* row) const {
      attnkit::relu<Isa>(x, scale, leap.d, row);
      Real* kept = row + leap.kept_at;
      kept[0] = module.template argument<Isa>(row, h, kept + leap.kUnits);
    }
    // The features of A, and in the place of the sigmoid's argument cosine, sine, and the sigmoid's slope.
    template <class Isa>
    ATTNKIT_INLINE void finish(Real* const* rows, int64_t n) const {
      constexpr int64_t lanes = simd::Lanes<double>::count;
      for (int64_t from = 0; from < n; from += lanes) {
        const int64_t count = std::min(n - from, lanes);
        alignas(64) double c[lanes] = {}, s[lanes], slope[lanes];
        for (int64_t i = 0; i < count; ++i) c[i] = rows[from + i][leap.kept_at];
        if constexpr (std::is_same_v<Real, float>) {
          simd::Vector<double, Isa> cosine, sine;
          const auto p = attnkit::sigmoid(simd::at<Isa>(c));
          attnkit::quarter_turns(p, cosine, sine);
          simd::store(cosine, c);
          simd::store(sine, s);
          simd::store(p * (1.0 - p), slope);
        } else {
          for (int64_t i = 0; i < count; ++i) {
            const double p = 1 / (1 + std::exp(-c[i]));
            attnkit::quarter_turns(p, c[i], s[i]);
            slope[i] = p * (1 - p);
          }
        }
        for (int64_t i = 0; i < count; ++i) {
          Real *row = rows[from + i], *kept = row + leap.kept_at;
          kept[0] = static_cast<Real>(c[i]), kept[1] = static_cast<Real>(s[i]), kept[2] = static_cast<Real>(slope[i]);
          attnkit::spread<Isa>(row, leap.d, kept[0], kept[1]);
        }
      }
    }
    template <class Isa>
    ATTNKIT_INLINE void gradient(const Real* x, double scale, const Module<Real>& module, int64_t h, Real* row,
                                 const Real* given, Real* to, Real* learned) const {
      Real* kept = row + leap.kept_at;
      const Real turned = attnkit::turn_gradient<Isa>(row, leap.d, given) * kept[2];
      attnkit::spread_gradient<Isa>(leap.d, kept[0], kept[1], given, to);
      attnkit::relu<Isa>(x, scale, leap.d, row);
      module.template gradient<Isa>(row, kept + leap.kUnits, h, turned, to, learned);
      attnkit::relu_gradient<Isa>(x, scale, leap.d, to, to);
    }
    template <class Isa>
    ATTNKIT_INLINE void query(const Real* x, const At<Isa>& at, Real* row) const {
      features<Isa>(x, leap.scale, q, at.h, row);
    }
    template <class Isa>
    ATTNKIT_INLINE void key(const Real* x, const At<Isa>& at, Real* row) const {
      features<Isa>(x, 1, k, at.h, row);
    }
    template <class Isa>
    ATTNKIT_INLINE void query_gradient(const Real* x, const At<Isa>& at, Real* row, const Real* given, Real* to,
                                       Real* learned) const {
      gradient<Isa>(x, leap.scale, q, at.h, row, given, to, learned);
    }
    template <class Isa>
    ATTNKIT_INLINE void key_gradient(const Real* x, const At<Isa>& at, Real* row, const Real* given, Real* to,
                                     Real* learned) const {
      gradient<Isa>(x, 1, k, at.h, row, given, to, learned + leap.q.floats());
    }
  };
  template <class Real>
  Bound<Real> bind(const attn_run& run) const {
    return {*this, ::bind<Real>(q, run), ::bind<Real>(k, run)};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::linear::Mechanism<Leap>)
