// relu on CUDA: the mathematics of relu.cpp.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

template <class Real>
struct Map {
  static constexpr bool kSplits = false;
  static constexpr int kFactors = 1;
  int d;
  Real scale;

  template <bool kQuery>
  __device__ Real feature(Real x) const {
    return attnkit::cuda::linear::relu(x * (kQuery ? scale : 1));
  }
  template <bool kQuery>
  __device__ Real back(Real x, Real given) const {
    return x > 0 ? given * (kQuery ? scale : 1) : 0;
  }
};

struct Relu : ::relu::Model {
  template <class Real>
  using Device = Map<Real>;
  using Model::Model;
  template <class Real>
  Map<Real> device(const attn_run&) const {
    return {static_cast<int>(d), static_cast<Real>(scale)};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Relu>)
