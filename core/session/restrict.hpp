// The tokens that may follow in a target, as [decode] says.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "core/base/decoding/sampler.hpp"
#include "core/manifest/manifest.hpp"

namespace attnkit::core {

// Calls never(id) for tokens that may not follow `written` tokens, the beginning among them.  Returns the only one that
// may, where it is given, else -1.
template <class Never>
int32_t restrict(const Manifest& m, int64_t written, const Never& never) {
  const auto forced = static_cast<int64_t>(m.forced.size());
  const int32_t end = m.decoder.tokenizer->end_id();
  for (const int32_t id : m.suppressed) never(id);
  if (written < m.min_decode_length) {
    never(end);
    for (const int32_t id : m.more_ends) never(id);
  }
  if (written == forced + 1)
    for (const int32_t id : m.suppressed_first) never(id);
  if (m.force_end && written == m.max_decode_length - 1) return end;
  return written < 1 || written > forced ? -1 : m.forced[static_cast<size_t>(written) - 1];
}

// Leaves the scores of what may follow; all others become -infinity.  Returns whether only one may.  No score may be
// NaN: a broken model must not look sound where it is hidden.
inline bool restrict_scores(const Manifest& m, int64_t written, std::span<float> scores) {
  constexpr float never = -std::numeric_limits<float>::infinity();
  const int32_t only = restrict(m, written, [scores](int32_t id) { scores[static_cast<size_t>(id)] = never; });
  if (only < 0) return false;
  const float score = scores[static_cast<size_t>(only)];
  std::ranges::fill(scores, never);
  scores[static_cast<size_t>(only)] = std::max(score, std::numeric_limits<float>::lowest());
  return true;
}

// The same of the highest scores; the score of an only one is 0.
inline bool restrict_scores(const Manifest& m, int64_t written, std::vector<Ranked>& highest) {
  const int32_t only = restrict(m, written, [&highest](int32_t never) {
    for (auto& [id, score] : highest)
      if (id == never) score = -std::numeric_limits<float>::infinity();
  });
  if (only < 0)
    rank(highest);
  else
    highest = {{only, 0}};
  return only >= 0;
}

// The most tokens that restrict_scores may take away where several may come.
inline int64_t most_restricted(const Manifest& m) {
  return std::ssize(m.suppressed) + std::ssize(m.suppressed_first) +
         (m.min_decode_length > 0 ? 1 + std::ssize(m.more_ends) : 0);
}

// Whether restrict_scores ever changes any.
inline bool restricts(const Manifest& m) { return most_restricted(m) > 0 || !m.forced.empty() || m.force_end; }

// Whether a token ends a target.
inline bool is_end(const Manifest& m, int32_t id) {
  return id == m.decoder.tokenizer->end_id() || std::ranges::find(m.more_ends, id) != m.more_ends.end();
}

// Gives the best score of all tokens that end a target to the one that hosts know of.
inline void join_ends(const Manifest& m, std::span<float> scores) {
  float& end = scores[static_cast<size_t>(m.decoder.tokenizer->end_id())];
  for (const int32_t id : m.more_ends)
    end = std::max(end, std::exchange(scores[static_cast<size_t>(id)], -std::numeric_limits<float>::infinity()));
}
inline void join_ends(const Manifest& m, std::vector<Ranked>& highest) {
  bool joined = false;
  for (auto& [id, score] : highest) {
    if (!is_end(m, id)) continue;
    if (std::exchange(joined, true)) score = -std::numeric_limits<float>::infinity();
    id = m.decoder.tokenizer->end_id();
  }
  rank(highest);
}

}  // namespace attnkit::core
