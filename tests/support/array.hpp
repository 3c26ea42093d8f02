// The arrays of core/conformance, as the tests of plugins name them.
#pragma once
#include "core/conformance/array.hpp"

namespace attnkit::test {

using namespace core;

using conformance::all_finite;
using conformance::Array;
using conformance::Array64;
using conformance::BasicArray;
using conformance::kGate;
using conformance::Layout;
using conformance::Moments;
using conformance::moments;
using conformance::Random;
using conformance::Ratio;
using conformance::rms_ratio;
using conformance::same_bits;
using conformance::worse;

}  // namespace attnkit::test
