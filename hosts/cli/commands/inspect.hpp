// The parts of attnkit inspect.
#pragma once

#include "hosts/cli/arguments.hpp"
#include "hosts/cli/failure.hpp"

namespace attnkit::cli {

// inspect --attention BLOCK: as a heat map, CSV, JSON or text.
Exit inspect_attention(const Arguments& arguments);

}  // namespace attnkit::cli
