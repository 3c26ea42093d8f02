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

  // y = W1 x + b1 of up to 16 inner units from i on, zeros in the other lanes of floats; returns how many.
  template <class Isa>
  ATTNKIT_INLINE int64_t inner(const Real* x, int64_t h, int64_t i, Real* y) const {
    const int64_t n = std::min(r - i, kLanes);
    const Real* bias = b1.row(h) + i;
    if constexpr (std::is_same_v<Real, float>) {
      simd::Vec<Isa> units, biases;
      simd::dots<Isa>(x, w1.row(0, h, i), w1.next, r - i, d, y);
      simd::load(y, n, units);
      simd::load(bias, n, biases);
      simd::store(units + biases, y);
    } else {
      for (int64_t j = 0; j < n; ++j) y[j] = simd::dot<Isa>(x, w1.row(0, h, i + j), d) + bias[j];
    }
    return n;
  }
  // The argument of the sigmoid.
  template <class Isa>
  ATTNKIT_INLINE Real argument(const Real* x, int64_t h) const {
    Real y[kLanes], t = 0;
    simd::Vec<Isa> sums{};
    for (int64_t i = 0; i < r; i += kLanes) {
      const int64_t n = inner<Isa>(x, h, i, y);
      if (r == 1) return y[0];
      const Real* w = w2.row(0, h, 0) + i;
      if constexpr (std::is_same_v<Real, float>) {
        const auto units = simd::at<Isa>(y);
        simd::Vec<Isa> weights;
        simd::load(w, n, weights);
        sums += simd::select(units < 0.0f, simd::Vec<Isa>{}, units) * weights;
      } else {
        for (int64_t j = 0; j < n; ++j) t += (y[j] < 0 ? 0 : y[j]) * w[j];
      }
    }
    return t + simd::sum(sums) + b2.row(h)[0];
  }
  // From the gradient of the argument of the sigmoid, given: adds that of x to `to`, those of W1, b1, W2, b2 to
  // learned.
  template <class Isa>
  ATTNKIT_INLINE void gradient(const Real* x, int64_t h, Real given, Real* to, Real* learned) const {
    Real *to_b1 = learned + r * d, *to_w2 = to_b1 + r;
    for (int64_t i = 0; i < r; i += kLanes) {
      Real y[kLanes];
      const int64_t n = inner<Isa>(x, h, i, y);
      for (int64_t j = 0; j < n; ++j) {
        Real inner_given = given;
        if (r != 1) {
          if (!(y[j] > 0)) continue;
          to_w2[i + j] += given * y[j];
          inner_given *= w2.row(0, h, 0)[i + j];
        }
        const Real* w = w1.row(0, h, i + j);
        Real* to_w = learned + (i + j) * d;
        to_b1[i + j] += inner_given;
        for (int64_t f = 0; f < d; ++f) {
          to_w[f] += inner_given * x[f];
          to[f] += inner_given * w[f];
        }
      }
    }
    if (r != 1) to_w2[r] += given;
  }
};

template <class Real>
Module<Real> bind(const leap::ModulePorts& m, const attn_run& run) {
  return {m.d, m.r, {run, m.ports[0]}, {run, m.ports[1]}, {run, m.ports[2]}, {run, m.ports[3]}};
}

struct Leap : leap::Model {
  using Model::Model;

  // A module of its own makes other features of a key for each head of queries.
  static bool shares_keys(const attnkit::Values& values) { return values.boolean("shared"); }

  attnkit::Learned learned() const { return list<attnkit::Learned>(); }

  // The map of one run.
  template <class Real>
  struct Bound {
    const Leap& leap;
    Module<Real> q, k;

    attnkit::Learned learned() const { return leap.learned(); }
    // A, and behind it what its proportion is the sigmoid of.
    template <class Isa>
    ATTNKIT_INLINE void features(const Real* x, double scale, const Module<Real>& module, int64_t h, Real* row) const {
      attnkit::relu(x, scale, leap.d, row);
      row[leap.d] = module.template argument<Isa>(row, h);
    }
    template <class Isa>
    ATTNKIT_INLINE void finish(Real* const* rows, int64_t n) const {
      const int64_t d = leap.d;
      if constexpr (std::is_same_v<Real, float>) {
        constexpr int64_t lanes = simd::Lanes<double>::count;
        for (int64_t from = 0; from < n; from += lanes) {
          const int64_t end = std::min(n, from + lanes);
          alignas(64) double c[lanes] = {}, s[lanes];
          for (int64_t i = from; i < end; ++i) c[i - from] = rows[i][d];
          simd::Vector<double, Isa> cosine, sine;
          attnkit::quarter_turns(attnkit::sigmoid(simd::at<Isa>(c)), cosine, sine);
          simd::store(cosine, c);
          simd::store(sine, s);
          for (int64_t i = from; i < end; ++i)
            attnkit::spread(rows[i], d, static_cast<float>(c[i - from]), static_cast<float>(s[i - from]));
        }
      } else {
        for (int64_t i = 0; i < n; ++i) attnkit::rotate(rows[i], d, sigmoid(rows[i][d]));
      }
    }
    static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
    template <class Isa>
    ATTNKIT_INLINE void gradient(const Real* x, double scale, const Module<Real>& module, int64_t h, Real* row,
                                 const Real* given, Real* to, Real* learned) const {
      attnkit::relu(x, scale, leap.d, to);
      const double p = sigmoid(module.template argument<Isa>(to, h));
      const Real turned = attnkit::turn_gradient<Isa>(row, leap.d, given);
      attnkit::rotate_gradient(leap.d, p, given, to);
      attnkit::relu(x, scale, leap.d, row);
      module.template gradient<Isa>(row, h, static_cast<Real>(static_cast<double>(turned) * p * (1 - p)), to, learned);
      attnkit::relu_gradient(x, scale, leap.d, to, to);
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
