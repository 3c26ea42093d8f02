// The gradients of a plugin against central differences of its own f64 run, those of f32 against those of f64, and both
// against golden ones.
#pragma once
#include "core/conformance/difference.hpp"
#include "support/suite.hpp"
#include "support/training.hpp"

namespace attnkit::test {

using conformance::kDifferenceGate;
using conformance::kGradientGate;

struct GradientCheck {
  std::function<void(Inputs&)> prepare = nullptr;
  std::function<bool(const Situation&)> allowed = nullptr;
  double gate = kGradientGate;  // of f32 against f64; outputs are held to half of it
};

// In every situation that the mechanism's plain run takes and that is allowed: the gradients of all ports against
// central differences, element by element in small shapes and along random directions in the suite's; f32 gradients
// and outputs against those of f64.  Returns the largest error of a difference.
double check_gradients(const attn_plugin& plugin, const Settings& settings = {}, const GradientCheck& check = {});

// The same of one call: of every element, or along two random directions in each port.
double check_gradients(Inputs& in, uint32_t flags, const Call& call, bool every_element, double gate = kGradientGate);

// The content of a golden case, by port: one batch row, the heads of a row beside each other; of a stored tensor the
// numbers in their order.
using ByPort = std::map<std::string, Matrix>;

// The gradients of one whole run must be the golden ones to 1e-12 in f64, relative to the largest of each port; those
// from inputs rounded to f32 pass check_gradients.  `given` is the gradient of OUTPUT.  Returns the error.
double check_golden_gradients(const Mechanism& mech, const Call& call, const ByPort& inputs, const Matrix& given,
                              const ByPort& gradients);

}  // namespace attnkit::test
