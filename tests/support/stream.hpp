// Streams of core/conformance, as the tests of plugins name them, and what the causal mechanisms that carry their state
// exactly have in common.
#pragma once
#include "core/conformance/stream.hpp"
#include "support/runner.hpp"

namespace attnkit::test {

using conformance::chunks_of;
using conformance::Feed;
using conformance::paste;
using conformance::streamed;

// n rows of a causal block give the same bits whole and streamed in any chunks.
void check_any_split(const Mechanism& mech, int64_t n, int64_t batch = 1);

// A query behind the last key gives the bits of the last row again, whether that was read before or not.
void check_newest_row_again(const Mechanism& mech);

}  // namespace attnkit::test
