// Whole sequences in types of 16 bits.
#pragma once
#include <span>

#include "core/conformance/bridge.hpp"
#include "core/conformance/runner.hpp"

namespace attnkit::core::conformance {

struct Half : HalfType {
  const char* name;
  double gate;  // of results, beside those of the same numbers in f32, as a ratio of RMS
};
std::span<const Half> all_halves();

// Makes queries and keys numbers that the type holds.
void round_inputs(Inputs& inputs, const Half& half);

// Plans and runs one whole sequence in that type; the output is widened, and NaN where the run wrote nothing.  Throws
// Refused; Violation when it wrote past the rows of its output.
Array run_in_half(Inputs& inputs, const Half& half, Call call);

}  // namespace attnkit::core::conformance
