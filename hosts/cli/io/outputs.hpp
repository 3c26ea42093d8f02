// Where the outputs of many inputs go: standard output as they come, in the order of the inputs, or --output when all
// are there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hosts/cli/arguments.hpp"
#include "hosts/cli/io/progress.hpp"

namespace attnkit::cli {

class Outputs {
 public:
  // quiet: something else writes to standard output.
  Outputs(const Arguments& arguments, size_t inputs, bool quiet = false);
  // The beginning of the next output on standard output, longer each time.
  void show(const std::string& beginning);
  // Of any input; tokens: how many it took, for progress.
  void add(size_t index, const std::string& text, size_t tokens);
  // Ends progress and writes --output.  Throws Failure (data).
  void finish();

 private:
  std::string path_;
  bool live_;
  std::optional<ProgressBar> progress_;
  std::vector<std::string> lines_;
  std::vector<bool> there_;
  size_t next_ = 0, finished_ = 0, tokens_ = 0;
  size_t shown_ = 0;  // characters of the next output
};

}  // namespace attnkit::cli
