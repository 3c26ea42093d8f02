#include "core/conformance/training.hpp"

#include <cstring>
#include <limits>

#include "core/base/error.hpp"

namespace attnkit::core::conformance {

namespace {

template <class Real>
std::pair<attn_request, Call> whole(const BasicInputs<Real>& inputs, uint32_t flags, Call call, uint32_t workers) {
  const attn_request request = whole_request(inputs, flags | ATTN_TRAIN, call, workers);
  return {request, call};
}

}  // namespace

template <class Real>
Training<Real>::Training(BasicInputs<Real>& inputs, const attn_request& bounds, const Call& call)
    : plan_(*inputs.mech, bounds), call_(call), bound_(plan_, inputs, call) {
  bound_.run();
}

template <class Real>
Training<Real>::Training(BasicInputs<Real>& inputs, std::pair<attn_request, Call> whole)
    : Training(inputs, whole.first, whole.second) {}

template <class Real>
Training<Real>::Training(BasicInputs<Real>& inputs, uint32_t flags, Call call, uint32_t workers)
    : Training(inputs, whole(inputs, flags, std::move(call), workers)) {}

template <class Real>
Gradients<Real> Training<Real>::gradients(uint64_t seed) const {
  constexpr Real kNan = std::numeric_limits<Real>::quiet_NaN();
  Gradients<Real> grads;
  for (size_t p = 0; p < bound_.outputs.size(); ++p) {
    const attn_port& port = *plan_.mech().ports()[p];
    BasicArray<Real> grad = is_given(port) ? bound_.outputs[p] : bound_.inputs().arrays[p];
    Random random(seed * 1000 + p);
    grad.set([&](int64_t b, int64_t, int64_t i, int64_t) -> Real {
      if (port.kind == ATTN_LEARNED) return static_cast<float>(random.uniform()) / 64;
      const float number = random.normal();
      const bool padded = port.kind == ATTN_OUTPUT && !call_.q_len.empty() && i >= call_.q_len[static_cast<size_t>(b)];
      return is_given(port) && !padded ? number : kNan;
    });
    const bool none = port.kind == ATTN_TABLE || (port.kind == ATTN_AUX_IN && call_.without_aux);
    grads.push_back(none ? BasicArray<Real>() : std::move(grad));
  }
  return grads;
}

template <class Real>
void Training<Real>::backward(Gradients<Real>& grads, uint32_t workers) {
  const Gradients<Real> before = grads, inputs = bound_.inputs().arrays, outputs = bound_.outputs;
  const auto* bytes = static_cast<const unsigned char*>(bound_.saved.data());
  const std::vector<unsigned char> saved(bytes, bytes + bound_.saved.size());
  const Exec exec(plan_.info().backward_scratch_bytes, workers);
  std::vector<attn_tensor> tensors;
  for (auto& grad : grads) tensors.push_back(grad.data().empty() ? attn_tensor{} : grad.tensor());
  attn_run run = bound_.get();
  run.exec = exec.get();
  const Mechanism& mech = plan_.mech();
  const auto call_plugin = [&](const attn_run& of, const attn_tensor* gradients) {
    Later grad(attn_grad{sizeof(attn_grad), 0, &of, gradients});
    if (!call_.later) grad.known.struct_size = sizeof(attn_grad);
    attn_error error = empty_error();
    const int32_t code = boundary("backward", [&] { return mech.plugin().backward(plan_.get(), &grad.known, &error); });
    if (code != ATTN_OK) throw RefusedRun(code, error.where, message_of(error));
  };
  if (call_.fenced) {
    FencedRun fenced(mech, run, call_, bound_.saved.size());
    const std::vector<attn_tensor> copied = fenced.copies.add("the gradient of port ", mech, tensors.data());
    within(fenced.copies.fences, "backward", [&] { call_plugin(fenced.run, copied.data()); });
    fenced.copies.copy_back();
  } else if (call_.later) {
    const Later later_exec(*run.exec);
    Later later_run(run);
    later_run.known.exec = &later_exec.known;
    call_plugin(later_run.known, tensors.data());
  } else {
    call_plugin(run, tensors.data());
  }
  if (!exec.intact()) throw Violation("backward wrote beyond its scratch");
  if (!bound_.saved.intact() || !std::equal(saved.begin(), saved.end(), bytes))
    throw Violation("backward changed what the run saved");
  if (!same_memory(inputs, bound_.inputs().arrays)) throw Violation("backward changed an input");
  if (!same_memory(outputs, bound_.outputs)) throw Violation("backward changed an output");
  for (size_t p = 0; p < grads.size(); ++p) {
    const std::string name = std::string("the gradient of port ") + mech.ports()[p]->name;
    if (is_given(*mech.ports()[p]) && !same_memory<Real>({grads[p]}, {before[p]}))
      throw Violation("backward changed " + name);
    if (!grads[p].data().empty() && !grads[p].gaps_intact())
      throw Violation("backward wrote between the rows of " + name);
  }
}

template class Training<float>;
template class Training<double>;

}  // namespace attnkit::core::conformance
