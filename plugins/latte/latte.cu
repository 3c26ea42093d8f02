// latte on CUDA: the mathematics of latte.cpp.  A latent is a feature with a denominator of its own.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

template <class Real>
struct Map {
  static constexpr bool kSplits = false;
  enum { kFollows, kEach };
  static constexpr bool follows = true;
  int latents;
  Real scale;

  // Nothing stands in a table.
  __device__ Nothing in_memory() const { return {}; }
  __device__ Nothing in_table(const Shared<Real>&) const { return {}; }
  __device__ void load_table(const Shared<Real>&) const {}

  template <bool kQuery, class X>
  __device__ void logits(const X& x, const Row<Real>& row, Nothing) const {
    for (int l = lane(); l < latents; l += 32) row.s[l] = x[l] * scale;
  }
  template <class C>
  __device__ void key(const Row<Real>& row, const C& c) const {
    for (int l = lane(); l < latents; l += 32) row.s[l] = exponential(row.s[l] - c(l));
  }
  template <class X, class C>
  __device__ void query(const X&, const Row<Real>& row, const C&) const {
    Real top = kLeast<Real>;
    for (int l = lane(); l < latents; l += 32) top = larger(top, static_cast<Real>(row.s[l]));
    for (int bits = 16; bits > 0; bits /= 2) top = larger(top, __shfl_xor_sync(kAll, top, bits));
    for (int l = lane(); l < latents; l += 32) row.s[l] = exponential(row.s[l] - top);
  }
};

struct Latte : latte::Model {
  template <class Real>
  using Device = Map<Real>;
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
  Map<Real> device(const attn_run&) const {
    return {static_cast<int>(latents), static_cast<Real>(scale)};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Latte>)
