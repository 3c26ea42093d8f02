// A subcommand: its name, its arguments and its function.
#pragma once

#include "hosts/cli/arguments.hpp"
#include "hosts/cli/failure.hpp"

namespace attnkit::cli {

using RunCommand = Exit(const Arguments& arguments);

struct Command {
  const char* name;
  const char* positional;  // the argument without dashes, "" for none
  bool needs_positional;
  const Options* options;  // nullptr: none of its own
  RunCommand* run;
  const char* synopsis;  // after "attnkit "
  const char* summary;   // one line
};

// Each in the file of commands/ that has its name.
extern const Options bench_options, bundle_options, doctor_options, import_options, inspect_options, quantize_options,
    report_options, run_options, search_options, search_worker_options, stream_options, tokenize_options,
    validate_plugin_options, verify_options;
RunCommand bench_command, bundle_command, doctor_command, import_command, inspect_command, plugins_command,
    quantize_command, report_command, run_command, search_command, search_worker_command, stream_command,
    tokenize_command, validate_command, validate_plugin_command, verify_command;

}  // namespace attnkit::cli
