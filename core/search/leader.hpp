// The best placement so far: each trial that ends is compared with the leader alone, so that thousands of them stay
// cheap.
#pragma once

#include <deque>
#include <functional>
#include <optional>

#include "core/search/ranking.hpp"

namespace attnkit::search {

// One thread.  Pareto fronts are not looked at: where no placement has a rank value, quality decides.
class Leader {
 public:
  // standing: see ranking.hpp.
  Leader(const Settings& settings, std::function<Ranked(const Record&)> standing)
      : settings_(settings), standing_(std::move(standing)) {}

  // `changed` has been measured further.  `all`, which must outlive the leader, is looked through only when it is the
  // leader itself or after restart().  NULL: none can be ranked; valid until the next call.
  const Ranked* update(const Record& changed, const std::deque<Record>& all);

  // What all are compared with has changed.
  void restart() { is_stale_ = true; }

 private:
  void consider(const Record& record);

  const Settings& settings_;
  std::function<Ranked(const Record&)> standing_;
  std::optional<Ranked> leader_;
  bool is_stale_ = false;
};

}  // namespace attnkit::search
