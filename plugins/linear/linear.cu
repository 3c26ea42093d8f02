// linear on CUDA: the mathematics of linear.cpp.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

template <class Real>
struct Map {
  static constexpr bool kSplits = false;
  static constexpr int kFactors = 1;
  int d;

  template <bool kQuery>
  __device__ Real feature(Real x) const {
    return elu1(x);
  }
  template <bool kQuery>
  __device__ Real back(Real x, Real given) const {
    return given * elu1_slope<Real>(x, elu1(x));
  }
};

struct Linear : ::linear::Model {
  template <class Real>
  using Device = Map<Real>;
  using Model::Model;
  template <class Real>
  Map<Real> device(const attn_run&) const {
    return {static_cast<int>(d)};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Linear>)
