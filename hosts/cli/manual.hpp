// The help of the command as a whole, for the page of man and for completions.
#pragma once

#include <span>

#include "hosts/cli/command.hpp"

namespace attnkit::cli {

std::span<const Command> commands();                   // those of the help, in its order
extern const char *const about, *const exit_statuses;  // without a line feed at the end
RunCommand manual_command;

}  // namespace attnkit::cli
