// gnuplot as a child process.
#pragma once

#include <string>
#include <string_view>

namespace attnkit::cli {

// Runs a script and returns what it printed.  Throws Failure (data): gnuplot is missing (naming the package) or fails;
// (interrupted) after Ctrl-C.
std::string run_gnuplot(const std::string& script);

// Text for a script: in quotes, without control characters.
std::string gnuplot_text(std::string_view text);

}  // namespace attnkit::cli
