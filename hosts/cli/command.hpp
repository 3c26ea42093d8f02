// A subcommand: its name, its arguments and its function.
#pragma once

#include "hosts/cli/arguments.hpp"
#include "hosts/cli/failure.hpp"

namespace attnkit::cli {

struct Command {
  const char* name;
  const char* synopsis;    // after "attnkit "
  const char* summary;     // one line
  const char* positional;  // the argument without dashes, "" for none
  bool needs_positional;
  Arguments::Options (*options)();  // nullptr: none of its own
  Exit (*run)(const Arguments& arguments);
};

extern const Command doctor_command, plugins_command, validate_command, inspect_command, run_command, stream_command,
    verify_command, bench_command, search_command, search_worker_command, report_command;

}  // namespace attnkit::cli
