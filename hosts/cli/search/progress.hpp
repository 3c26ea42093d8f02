// How far a search is, on standard error: one line that is drawn anew on a terminal, else a line per stage or 30 s.
#pragma once

#include <chrono>
#include <string>

#include "hosts/cli/arguments.hpp"
#include "core/search/trial_runner.hpp"

namespace attnkit::cli {

class SearchProgress {
 public:
  explicit SearchProgress(Progress mode);
  ~SearchProgress() { clear(); }
  SearchProgress(const SearchProgress&) = delete;
  void show(const search::Progress& progress);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  Progress mode_;
  std::string stage_;
  size_t done_before_ = 0;
  bool drawn_ = false;
  Clock::time_point start_, last_;
};

}  // namespace attnkit::cli
