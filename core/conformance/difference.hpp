// Gradients against central differences of the mechanism's own f64 run, and those of f32 against those of f64.
#pragma once
#include "core/conformance/training.hpp"

namespace attnkit::core::conformance {

constexpr double kDifferenceGate = 1e-6;     // of f64 gradients and central differences, relative to the gradient
constexpr double kGradientGate = 2 * kGate;  // of f32
// A gradient that should be zero is what rounding leaves: none is held to its own size where that is less than this
// part of the largest one's.
constexpr double kMinGradient = 1e-3;

struct Differences {
  double worst = 0;  // of the central differences, relative to the gradient
  std::vector<std::string> problems;
};

// The gradients of one call, of every element or along two random directions in each port.  Throws Refused, Violation.
Differences differences(Inputs& in, uint32_t flags, const Call& call, bool every_element, double gate = kGradientGate);

// The numbers that backward added to or wrote into each gradient.
template <class Real>
std::vector<Array64> made(const Mechanism& mech, const Gradients<Real>& before, const Gradients<Real>& after);

// The largest number of an array, without its sign.
double largest_of(const Array64& a);

}  // namespace attnkit::core::conformance
