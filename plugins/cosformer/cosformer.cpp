// cosformer: linear attention re-weighted by the cosine of the distance in relative position.
// reference.hpp is the slow form of what follows, as the paper writes it.
//
// Qin et al.: cosFormer: Rethinking Softmax in Attention, ICLR 2022, arXiv:2202.08791; cross attention from
// Agostinelli and Chen: Modular Linearized Attention, ECML 2023, Eq. 8.
//
//   w_ij = (A_i . B_j) cos(pi/2 (i/N - j/M)),  A = ReLU(Q), B = ReLU(K), i and j from 1
//   o_i  = sum_j w_ij v_j / g(sum_j w_ij)
//        = ([A cos; A sin]_i^T sum_j [B cos; B sin]_j v_j^T) / g(...)
//
// N, M: true lengths of the whole sequences, in self attention the same.  Cost per head: 4 D (E+1)(N+M) flops; state
// 2 D (E+1) floats, whatever the length.
#include <attnkit/kernels/features.hpp>
#include <attnkit/kernels/linear.hpp>

#include "model.hpp"

namespace {

using attnkit::linear::At;
using attnkit::linear::Place;

struct Cosformer : cosformer::Model {
  using Model::Model;

  template <class Real>
  Cosformer bind(const attn_run& of) const {
    Cosformer map = *this;
    map.run = &of;
    return map;
  }

  // N and M of batch row b.
  ATTNKIT_INLINE double n(int64_t b) const {
    if (run->q_total) return run->q_total[b];
    return static_cast<double>(run->q_len ? run->q_len[b] : run->queries);
  }
  ATTNKIT_INLINE double m(int64_t b) const {
    if (self) return n(b);
    if (run->k_total) return run->k_total[b];
    return static_cast<double>(run->k_len ? run->k_len[b] : run->keys);
  }
  ATTNKIT_INLINE double proportion(int64_t position, double own, double other) const {
    double i = static_cast<double>(position + 1);
    if (saturate && i > own) i = own;
    return i / (joint && other > own ? other : own);
  }
  ATTNKIT_INLINE double of_query(const Place& at) const {
    return proportion(at.position, n(at.b), joint ? m(at.b) : 0);
  }
  ATTNKIT_INLINE double of_key(const Place& at) const { return proportion(at.position, m(at.b), joint ? n(at.b) : 0); }
  template <class Isa, class Real>
  ATTNKIT_INLINE void features(const Real* x, double proportion, Real* row) const {
    attnkit::relu<Isa>(x, 1, d, row);
    attnkit::rotate<Isa>(row, d, proportion);
  }
  template <class Isa, class Real>
  ATTNKIT_INLINE void gradient(const Real* x, double proportion, const Real* given, Real* to) const {
    attnkit::rotate_gradient<Isa>(d, proportion, given, to);
    attnkit::relu_gradient<Isa>(x, 1, d, to, to);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void query(const Real* x, const At<Isa>& at, Real* row) const {
    features<Isa>(x, of_query(at), row);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void key(const Real* x, const At<Isa>& at, Real* row) const {
    features<Isa>(x, of_key(at), row);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void query_gradient(const Real* x, const At<Isa>& at, Real*, const Real* given, Real* to) const {
    gradient<Isa>(x, of_query(at), given, to);
  }
  template <class Real, class Isa>
  ATTNKIT_INLINE void key_gradient(const Real* x, const At<Isa>& at, Real*, const Real* given, Real* to) const {
    gradient<Isa>(x, of_key(at), given, to);
  }

  const attn_run* run = nullptr;
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::linear::Mechanism<Cosformer>)
