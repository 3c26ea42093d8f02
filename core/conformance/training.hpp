// A training run and its backward passes as a strict host does them: exact memory between canaries, gradients of
// sequences that start as NaN, and everything else checked to be as it was.
#pragma once
#include "core/conformance/runner.hpp"

namespace attnkit::core::conformance {

// By port.  An empty array is a gradient that nobody asked for.
template <class Real>
using Gradients = std::vector<BasicArray<Real>>;

template <class Real>
class Training {
 public:
  // Plans under ATTN_TRAIN for up to that many workers, and runs.
  Training(BasicInputs<Real>& inputs, uint32_t flags, Call call, uint32_t workers = 1);
  Training(BasicInputs<Real>& inputs, const attn_request& bounds, const Call& call);
  const attn_info& info() const { return plan_.info(); }
  const std::vector<BasicArray<Real>>& outputs() const { return bound_.outputs; }
  // Of OUTPUT and AUX_OUT random, with NaN past q_len; of LEARNED small known numbers, to be added to; the rest NaN.
  // Both types get the same numbers.
  Gradients<Real> gradients(uint64_t seed = 7) const;
  // Throws Refused; Violation when something was written that is not a gradient asked for.
  void backward(Gradients<Real>& grads, uint32_t workers = 1);

 private:
  Training(BasicInputs<Real>& inputs, std::pair<attn_request, Call> whole);
  const Planned plan_;
  const Call call_;
  Bound<Real> bound_;
};

// The gradients of one backward pass.
template <class Real>
Gradients<Real> backward(BasicInputs<Real>& inputs, uint32_t flags, const Call& call, uint64_t seed = 7) {
  Training<Real> training(inputs, flags, call);
  Gradients<Real> grads = training.gradients(seed);
  training.backward(grads);
  return grads;
}

}  // namespace attnkit::core::conformance
