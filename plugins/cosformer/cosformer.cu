// cosformer on CUDA: the mathematics of cosformer.cpp.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

template <class Real>
struct Map {
  static constexpr bool kSplits = false;
  static constexpr int kFactors = 2;
  int d;
  bool self, joint, saturate;
  const int32_t *q_len, *k_len;
  const double *q_total, *k_total;
  int64_t queries, keys;

  // N and M of batch row b.
  __device__ double n(int64_t b) const {
    return q_total ? q_total[b] : static_cast<double>(q_len ? q_len[b] : queries);
  }
  __device__ double m(int64_t b) const {
    return self ? n(b) : k_total ? k_total[b] : static_cast<double>(k_len ? k_len[b] : keys);
  }
  // Cosine and sine of a row's proportion.
  template <bool kQuery>
  __device__ void factors(const Place& at, Real (&by)[kFactors]) const {
    const double own = kQuery ? n(at.b) : m(at.b), other = !joint ? 0 : kQuery ? m(at.b) : n(at.b);
    const double i = static_cast<double>(at.position + 1), reached = saturate && i > own ? own : i;
    quarter_turns(quotient(static_cast<Real>(reached), static_cast<Real>(joint && other > own ? other : own)), by[0],
                  by[1]);
  }
  template <bool kQuery>
  __device__ Real feature(Real x) const {
    return relu(x);
  }
  template <bool kQuery>
  __device__ Real back(Real x, Real given) const {
    return x > 0 ? given : 0;
  }
};

struct Cosformer : cosformer::Model {
  template <class Real>
  using Device = Map<Real>;
  using Model::Model;
  template <class Real>
  Map<Real> device(const attn_run& r) const {
    return {static_cast<int>(d), self, joint, saturate, r.q_len, r.k_len, r.q_total, r.k_total, r.queries, r.keys};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Cosformer>)
