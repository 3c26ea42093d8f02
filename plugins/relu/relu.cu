// relu on CUDA: the mathematics of relu.cpp.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

struct Map {
  static constexpr bool kSplits = false;
  int d;
  float scale;

  template <class X>
  __device__ void map(const X& x, float by, const Row& row) const {
    for (int f = lane(); f < d; f += 32) row.s[f] = attnkit::cuda::linear::relu(x[f] * by);
  }
  template <class X>
  __device__ void query(const X& x, const Place&, const Row& row) const {
    map(x, scale, row);
  }
  template <class X>
  __device__ void key(const X& x, const Place&, const Row& row) const {
    map(x, 1, row);
  }
};

struct Relu : ::relu::Model {
  using Device = Map;
  using Model::Model;
  Map device(const attn_run&) const { return {static_cast<int>(d), static_cast<float>(scale)}; }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Relu>)
