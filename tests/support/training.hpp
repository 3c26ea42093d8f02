// Backward passes of core/conformance, as the tests of plugins name them.
#pragma once
#include "core/conformance/training.hpp"
#include "support/runner.hpp"

namespace attnkit::test {

using conformance::backward;
using conformance::Gradients;
using conformance::Training;

}  // namespace attnkit::test
