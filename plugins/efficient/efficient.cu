// efficient on CUDA: the mathematics of efficient.cpp.  The features of q and k are the logits.
#include <attnkit/kernels/cuda/linear/latents.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

struct Efficient : efficient::Model {
  template <class Real>
  using Device = LatentMap<Real>;
  explicit Efficient(const Setup& s) : Model{s.block}, width(static_cast<int>(s.shape.d)) { s.shape.extra = width; }
  int table_floats() const { return 0; }
  void check(const attnkit::Request&, const attnkit::Info&) const { check_causal(); }
  template <class Real>
  LatentMap<Real> device(const attn_run&) const {
    return {width, 1};
  }

  int width;
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Efficient>)
