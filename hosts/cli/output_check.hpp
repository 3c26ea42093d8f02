// Keeps --output from replacing what the command reads.
#pragma once

#include "arguments.hpp"

namespace attnkit::cli {

// Before anything runs: throws Failure (usage) when --output is the manifest, --file, --target-file or a file of the
// model, whatever name or link leads there; (data) when it could not be written.  Nothing without --output.
void check_output(const Arguments& arguments);

}  // namespace attnkit::cli
