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

#include "model.hpp"

namespace {

using attnkit::linear::At;

struct Relu : relu::Model {
  using Model::Model;

  template <class Real, class Isa>
  ATTNKIT_INLINE void query(const Real* x, const At<Isa>&, Real* row) const {
    attnkit::relu<Isa>(x, scale, d, row);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void key(const Real* x, const At<Isa>&, Real* row) const {
    attnkit::relu<Isa>(x, 1, d, row);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void query_gradient(const Real* x, const At<Isa>&, Real*, const Real* given, Real* to) const {
    attnkit::relu_gradient<Isa>(x, scale, d, given, to);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void key_gradient(const Real* x, const At<Isa>&, Real*, const Real* given, Real* to) const {
    attnkit::relu_gradient<Isa>(x, 1, d, given, to);
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::linear::Mechanism<Relu>)
