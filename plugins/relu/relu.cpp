// relu: the simplest linear attention, "identity re-weighting".
// reference.hpp is the slow form of what follows, as the paper writes it.
//
// Agostinelli, Chen: Improving Autoregressive NLP Tasks via Modular Linearized Attention, ECML 2023 (simple ReLU).
//
//   o_i = sum_j (A_i . B_j) v_j / g(sum_j A_i . B_j),   A = ReLU(s Q), B = ReLU(K),   g = none | add | clamp
//
// s is 1 (the authors') or D^-1/2.  Cost per head: 2 D (E+1)(N+M) flops; state D (E+1) floats, whatever the length.
#include <attnkit/kernels/features.hpp>
#include <attnkit/kernels/linear.hpp>

namespace {

using attnkit::Guard;
using attnkit::linear::Place;

struct Relu {
  static constexpr attnkit::About about{.name = "relu",
                                        .summary = "linear attention with ReLU features: constant state, no positions",
                                        .citation = "Agostinelli and Chen, Modular Linearized Attention, ECML 2023",
                                        .state_revision = "1"};
  static attnkit::Options options() {
    return {Guard::option("clamp"), Guard::eps_option(1e-6), attnkit::scale_option()};
  }

  explicit Relu(const attnkit::linear::Setup& s) : d(s.shape.d), scale(attnkit::scale_from(s.values, d)) {}

  template <class Real>
  ATTNKIT_INLINE void query(const Real* x, const Place&, Real* row) const {
    attnkit::relu(x, scale, d, row);
  }
  template <class Real>
  ATTNKIT_INLINE void key(const Real* x, const Place&, Real* row) const {
    attnkit::relu(x, 1, d, row);
  }
  template <class Real>
  ATTNKIT_INLINE void query_gradient(const Real* x, const Place&, Real*, const Real* given, Real* to) const {
    attnkit::relu_gradient(x, scale, d, given, to);
  }
  template <class Real>
  ATTNKIT_INLINE void key_gradient(const Real* x, const Place&, Real*, const Real* given, Real* to) const {
    attnkit::relu_gradient(x, 1, d, given, to);
  }

  int64_t d;
  double scale;
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::linear::Mechanism<Relu>)
