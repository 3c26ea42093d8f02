// Plans and runs of core/conformance, as the tests of plugins name them.
#pragma once
#include "core/conformance/runner.hpp"
#include "support/array.hpp"
#include "support/loader.hpp"

namespace attnkit::test {

using conformance::Arena;
using conformance::BasicInputs;
using conformance::Bound;
using conformance::Bytes;
using conformance::Call;
using conformance::Inputs;
using conformance::Inputs64;
using conformance::is_given;
using conformance::is_taken;
using conformance::make_request;
using conformance::Planned;
using conformance::refusal;
using conformance::run_whole;
using conformance::whole_request;

}  // namespace attnkit::test
