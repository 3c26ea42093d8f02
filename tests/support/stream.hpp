// Streams of core/conformance, as the tests of plugins name them.
#pragma once
#include "core/conformance/stream.hpp"
#include "support/runner.hpp"

namespace attnkit::test {

using conformance::chunks_of;
using conformance::Feed;
using conformance::paste;
using conformance::streamed;

}  // namespace attnkit::test
