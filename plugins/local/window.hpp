// Which keys a sliding window shows, and how many.
#ifndef ATTNKIT_LOCAL_WINDOW_HPP
#define ATTNKIT_LOCAL_WINDOW_HPP
#include <algorithm>
#include <cstdint>

namespace attnkit::local {

struct Window {
  int64_t size;  // w
  bool causal;

  struct Range {
    int64_t begin, end;
  };
  // Keys before and behind a query, its own aside: |i - j| < w / 2, or i - w < j <= i.
  int64_t before() const { return causal ? size - 1 : (size - 1) / 2; }
  int64_t behind() const { return causal ? 0 : (size - 1) / 2; }
  int64_t most() const { return before() + behind() + 1; }
  // Positions that a query at `position` sees of the first `seen` keys.
  Range at(int64_t position, int64_t seen) const {
    return {std::max<int64_t>(0, position - before()), std::min(seen, position + behind() + 1)};
  }

  // 1 + 2 + ... + x, each at most limit.
  static int64_t capped_sum(int64_t x, int64_t limit) {
    const int64_t free = std::min(x, limit);
    return free * (free + 1) / 2 + (x - free) * limit;
  }
  // Pairs that one run weighs.  Queries stand at the last positions of a causal block, from 0 on otherwise.
  int64_t pairs(int64_t queries, int64_t keys, int64_t past) const {
    const int64_t all = past + keys;
    if (causal) return capped_sum(all, size) - capped_sum(all - std::min(queries, all), size);
    const int64_t n = std::min(queries, all + before());  // those further on see nothing
    const int64_t missed = std::max<int64_t>(0, n - 1 - before());
    return capped_sum(n + behind(), all) - capped_sum(behind(), all) - missed * (missed + 1) / 2;
  }
  // Keys of the past that some query of such a run sees.
  int64_t old(int64_t queries, int64_t keys, int64_t past) const {
    if (queries == 0) return 0;
    const int64_t first = std::max<int64_t>(0, past + keys - queries - before());
    return std::max<int64_t>(0, past - first);
  }
};

}  // namespace attnkit::local
#endif
