// Keeps --output from replacing what the command reads.
#pragma once

#include "hosts/cli/arguments.hpp"

namespace attnkit::cli {

// Before anything runs: throws Failure (usage) when --output, or another option that names a file to write, is the
// manifest, --file, --target-file, --audio, --audio-list or a file of the model, whatever name or link leads there;
// (data) when it could not be written.  Nothing without the option.
void check_output(const Arguments& arguments, const char* option = "output");

}  // namespace attnkit::cli
