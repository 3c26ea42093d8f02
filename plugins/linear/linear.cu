// linear on CUDA: the mathematics of linear.cpp.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

struct Map {
  static constexpr bool kSplits = false;
  int d;

  template <class X>
  __device__ void query(const X& x, const Place&, const Row& row) const {
    for (int f = lane(); f < d; f += 32) row.s[f] = elu1(x[f]);
  }
  template <class X>
  __device__ void key(const X& x, const Place& at, const Row& row) const {
    query(x, at, row);
  }
};

struct Linear : ::linear::Model {
  using Device = Map;
  using Model::Model;
  Map device(const attn_run&) const { return {static_cast<int>(d)}; }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Linear>)
