// gnuplot as a child process.
#pragma once

#include <string>

namespace attnkit::cli {

// Runs a script and returns what it printed.  Throws Failure (data): gnuplot is missing (naming the package) or fails;
// (interrupted) after Ctrl-C.
std::string run_gnuplot(const std::string& script);

}  // namespace attnkit::cli
