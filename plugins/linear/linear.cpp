// linear: the linear transformer's attention with elu(x) + 1 features.
// reference.hpp is the slow form of what follows, as the paper writes it.
//
// Katharopoulos et al.: Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention, ICML 2020,
// arXiv:2006.16236.
//
//   o_i = sum_j (A_i . B_j) v_j / g(sum_j A_i . B_j),   A = elu(Q) + 1, B = elu(K) + 1,   g = none | add | clamp
//
// Every weight is positive.  Cost per head: 2 D (E+1)(N+M) flops; state D (E+1) floats, whatever the length.
#include <attnkit/kernels/features.hpp>
#include <attnkit/kernels/linear.hpp>

#include "model.hpp"

namespace {

using attnkit::linear::At;

struct Linear : linear::Model {
  using Model::Model;

  template <class Real, class Isa>
  ATTNKIT_INLINE void query(const Real* x, const At<Isa>&, Real* row) const {
    attnkit::elu1<Isa>(x, 1, d, row);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void key(const Real* x, const At<Isa>& at, Real* row) const {
    query(x, at, row);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void query_gradient(const Real* x, const At<Isa>&, Real* row, const Real* given, Real* to) const {
    attnkit::elu1_gradient<Isa>(x, row, 1, d, given, to);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void key_gradient(const Real* x, const At<Isa>& at, Real* row, const Real* given, Real* to) const {
    query_gradient(x, at, row, given, to);
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::linear::Mechanism<Linear>)
