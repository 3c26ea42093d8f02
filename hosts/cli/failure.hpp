// The failure of a command: an exit code, one line, a remedy, and for manifests every diagnostic.
#pragma once

#include <fmt/format.h>

#include <attnkit/attnkit.hpp>
#include <string>
#include <utility>
#include <vector>

namespace attnkit::cli {

enum class Exit {
  success = 0,
  internal = 1,
  usage = 2,
  manifest = 3,
  plugin = 4,
  weights = 5,
  data = 6,  // also files, standard output, a missing gnuplot or device
  numerical = 7,
  gate = 8,
  interrupted = 130
};

class Failure : public std::runtime_error {
 public:
  Failure(Exit exit, const std::string& message, std::string help = {})
      : std::runtime_error(message), exit_(exit), help_(std::move(help)) {}
  // Of the manifest in `file`.
  Failure(Exit exit, std::string file, std::vector<Diagnostic> diagnostics)
      : std::runtime_error(file + " cannot be used"),
        exit_(exit),
        file_(std::move(file)),
        diagnostics_(std::move(diagnostics)) {}
  Exit exit() const { return exit_; }
  const std::string& help() const { return help_; }
  const std::string& file() const { return file_; }
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  Exit exit_;
  std::string help_, file_;
  std::vector<Diagnostic> diagnostics_;
};

template <class... Args>
[[noreturn]] void fail(Exit exit, fmt::format_string<Args...> text, Args&&... args) {
  throw Failure(exit, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace attnkit::cli
