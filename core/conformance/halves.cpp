#include "core/conformance/halves.hpp"

#include <algorithm>

#include "core/base/bf16.hpp"
#include "core/base/error.hpp"
#include "core/base/half.hpp"
#include "core/conformance/check.hpp"

namespace attnkit::core::conformance {

namespace {

constexpr size_t kGuard = 16;         // elements behind the last one
constexpr uint16_t kPoison = 0xFFFF;  // a NaN of both types

bool is_sequence(const attn_port& port) {
  return port.kind == ATTN_QUERY || port.kind == ATTN_KEY || port.kind == ATTN_OUTPUT;
}

// A tensor's numbers in 16 bits, in the same strides, with poison in the gaps.
class Rounded {
 public:
  Rounded(const attn_tensor& from, const Half& half, bool is_output) : memory_(extent(from) / 4 + kGuard, kPoison) {
    const auto* const data = static_cast<const float*>(from.data);
    tensor_ = from;
    tensor_.data = memory_.data();
    tensor_.dtype_code = half.code;
    tensor_.dtype_bits = 16;
    if (!is_output) for_all([&](size_t at, auto...) { memory_[at] = half.round(data[at]); });
  }
  const attn_tensor& tensor() const { return tensor_; }
  void widen(const Half& half, Array& to) const {
    for_all([&](size_t at, auto... element) {
      if (memory_[at] != kPoison) to.at(element...) = half.widen(memory_[at]);
    });
  }
  bool gaps_intact() const {
    std::vector<uint16_t> gaps = memory_;
    for_all([&](size_t at, auto...) { gaps[at] = kPoison; });
    return std::all_of(gaps.begin(), gaps.end(), [](uint16_t bits) { return bits == kPoison; });
  }

 private:
  template <class Act>
  void for_all(const Act& act) const {
    const auto &n = tensor_.shape, &stride = tensor_.stride;
    for (int64_t b = 0; b < n[0]; ++b)
      for (int64_t h = 0; h < n[1]; ++h)
        for (int64_t i = 0; i < n[2]; ++i)
          for (int64_t c = 0; c < n[3]; ++c)
            act(static_cast<size_t>(b * stride[0] + h * stride[1] + i * stride[2] + c), b, h, i, c);
  }
  attn_tensor tensor_{};
  std::vector<uint16_t> memory_;
};

}  // namespace

std::span<const Half> all_halves() {
  static constexpr Half halves[] = {{{2, round_to_half, from_half}, "f16", 1e-3},
                                    {{4, round_to_bf16, from_bf16}, "bf16", 8e-3}};
  return halves;
}

void round_inputs(Inputs& inputs, const Half& half) {
  for (size_t p = 0; p < inputs.arrays.size(); ++p) {
    const uint32_t kind = inputs.mech->ports()[p]->kind;
    if (kind == ATTN_QUERY || kind == ATTN_KEY)
      inputs.arrays[p].set([&, before = inputs.arrays[p]](int64_t b, int64_t h, int64_t i, int64_t c) {
        return half.widen(half.round(before.at(b, h, i, c)));
      });
  }
}

Array run_in_half(Inputs& inputs, const Half& half, Call call) {
  attn_request request = whole_request(inputs, 0, call, 1);
  request.dtype_code = half.code;
  request.dtype_bits = 16;
  const Mechanism& mech = *inputs.mech;
  const Planned plan(mech, request);
  Bound<float> bound(plan, inputs, call);
  std::vector<attn_tensor> tensors(bound.get().ports, bound.get().ports + mech.ports().size());
  std::vector<Rounded> rounded;
  for (size_t p = 0; p < tensors.size(); ++p) {
    if (!is_sequence(*mech.ports()[p])) continue;
    rounded.emplace_back(tensors[p], half, is_given(*mech.ports()[p]));
    tensors[p] = rounded.back().tensor();
  }
  attn_run run = bound.get();
  run.ports = tensors.data();
  attn_error error = empty_error();
  const int32_t code = boundary("run", [&] { return mech.plugin().run(plan.get(), &run, &error); });
  if (code != ATTN_OK) throw RefusedRun(code, error.where, message_of(error));
  Array& output = bound.outputs[mech.output()];
  for (const Rounded& one : rounded) {
    if (one.tensor().data != tensors[mech.output()].data) continue;
    hold(one.gaps_intact(), "the run in {} wrote past the rows of an output", half.name);
    one.widen(half, output);
  }
  return output;
}

}  // namespace attnkit::core::conformance
