// Progress on standard error: a bar on a terminal, otherwise a line per 10 % or 30 s.
#pragma once

#include <chrono>

#include "hosts/cli/arguments.hpp"

namespace attnkit::cli {

class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;
  ProgressBar(Progress mode, size_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  void show(size_t done, size_t tokens);

 private:
  void draw(size_t done, double rate);
  void line(size_t done, double rate);
  Progress mode_;
  size_t total_, shown_ = 0;  // shown_: tenths
  bool quiet_;                // while it may be over before anybody asks
  bool drawn_ = false;
  Clock::time_point start_, last_;
};

}  // namespace attnkit::cli
