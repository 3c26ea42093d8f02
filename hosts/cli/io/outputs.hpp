// The outputs of many inputs: to standard output as they come, in the order of the inputs, or to --output once all are
// there; and progress on standard error meanwhile.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.hpp"
#include "hosts/cli/arguments.hpp"
#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

using namespace core;

// A bar on a terminal, otherwise a line per 10 % or 30 s.
class ProgressBar {
 public:
  ProgressBar(Progress mode, size_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  void show(size_t done, size_t tokens);

 private:
  Progress mode_;
  size_t total_, shown_ = 0;  // shown_: tenths
  bool quiet_;                // for the first second, which may be all there is
  bool drawn_ = false;
  Clock::time_point start_, last_;
};

class Outputs {
 public:
  // quiet: something else writes to standard output.
  Outputs(const Arguments& arguments, size_t inputs, bool quiet = false);
  // More of the beginning of the next output, on standard output.
  void show(const std::string& more);
  // Of any input; tokens: how many it took, for progress.  With --file and --audio-list it stays one line: a line feed
  // of its own becomes a space.
  void add(size_t index, std::string text, size_t tokens);
  // --output takes this in place of the lines.
  void replace(std::string content) { content_ = std::move(content); }
  // Ends progress, writes --output, prints document with --json, and summary on standard error.  Throws Failure (data).
  Exit finish(const Json& document, const std::string& summary);

 private:
  std::string path_;
  bool json_, live_;
  std::optional<ProgressBar> progress_;
  std::vector<std::optional<std::string>> lines_;
  std::optional<std::string> content_;
  size_t next_ = 0, finished_ = 0, tokens_ = 0;
  size_t shown_ = 0;  // bytes of the next output
};

}  // namespace attnkit::cli
