// Mechanisms of core/conformance, as the tests of plugins name them.
#pragma once
#include "core/base/error.hpp"
#include "core/conformance/loader.hpp"

namespace attnkit::test {

using attnkit::empty_error;
using conformance::expect_ok;
using conformance::load;
using conformance::make_block;
using conformance::Mechanism;
using conformance::Refused;
using conformance::Setting;
using conformance::Settings;

}  // namespace attnkit::test
