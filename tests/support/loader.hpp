// Mechanisms of core/conformance, as the tests of plugins name them.
#pragma once
#include <cstdlib>

#include "core/base/error.hpp"
#include "core/conformance/loader.hpp"

namespace attnkit::test {

using namespace core;

using conformance::expect_ok;
using conformance::make_block;
using conformance::Mechanism;
using conformance::Refused;
using conformance::Setting;
using conformance::Settings;
using core::empty_error;

// conformance::load of a library, or of the one with its file name in the folder ATTNKIT_TEST_PLUGINS of the
// environment.
inline const attn_plugin& load(const std::string& given) {
  const char* folder = std::getenv("ATTNKIT_TEST_PLUGINS");
  return conformance::load(folder ? folder + given.substr(given.find_last_of('/')) : given);
}

}  // namespace attnkit::test
