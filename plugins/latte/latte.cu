// latte on CUDA: the mathematics of latte.cpp.  A latent is a feature with a denominator of its own.
#include <attnkit/kernels/cuda/linear/latents.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

struct Latte : latte::Model {
  template <class Real>
  using Device = LatentMap<Real>;
  explicit Latte(const Setup& s) : Model(s.block, s.values) {
    s.shape.features = latents;
    s.shape.extra = latents;
  }
  static attnkit::QkvPorts list(const Setup& s) {
    const Model model(s.block, s.values);
    s.shape.d = model.latents;
    return model.list(s.ports);
  }
  int table_floats() const { return 0; }
  void check(const attnkit::Request&, const attnkit::Info&) const { check_role(); }
  template <class Real>
  LatentMap<Real> device(const attn_run&) const {
    return {static_cast<int>(latents), static_cast<Real>(scale)};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Latte>)
