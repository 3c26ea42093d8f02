// How the requests of a run are shared out among workers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace attnkit::search {

// Contiguous ranges of requests, one for each worker.
class Shares {
 public:
  Shares(size_t requests, size_t workers) : left_(requests) {
    for (size_t w = 0; w < workers; ++w) ranges_.push_back({requests * w / workers, requests * (w + 1) / workers});
  }

  size_t left() const { return left_; }

  // Something must be left.
  size_t take(size_t worker) {
    Range& own = ranges_[worker];
    if (own.size() == 0) own = steal();
    --left_;
    return own.begin++;
  }

  // What this worker took last.
  void give_back(size_t worker) {
    ++left_;
    --ranges_[worker].begin;
  }

 private:
  struct Range {
    size_t begin, end;
    size_t size() const { return end - begin; }
  };

  Range steal() {
    const auto is_smaller = [](const Range& a, const Range& b) { return a.size() < b.size(); };
    Range& victim = *std::max_element(ranges_.begin(), ranges_.end(), is_smaller);
    const size_t middle = victim.begin + victim.size() / 2;
    return {middle, std::exchange(victim.end, middle)};
  }

  std::vector<Range> ranges_;
  size_t left_;
};

}  // namespace attnkit::search
