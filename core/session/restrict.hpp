// The tokens that may follow in a target, as [decode] says.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "core/manifest/manifest.hpp"

namespace attnkit::core {

// Leaves the scores of what may follow `written` tokens, the beginning among them; all others become -infinity.
// Returns whether only one may.  No score may be NaN: a broken model must not look sound where it is hidden.
inline bool restrict_scores(const Manifest& m, int64_t written, std::span<float> scores) {
  constexpr float never = -std::numeric_limits<float>::infinity();
  const auto forced = static_cast<int64_t>(m.forced.size());
  const auto end = static_cast<size_t>(m.decoder.tokenizer->end_id());
  for (const int32_t id : m.suppressed) scores[static_cast<size_t>(id)] = never;
  if (written < m.min_decode_length) {
    scores[end] = never;
    for (const int32_t id : m.more_ends) scores[static_cast<size_t>(id)] = never;
  }
  if (written == forced + 1)
    for (const int32_t id : m.suppressed_first) scores[static_cast<size_t>(id)] = never;
  const bool ends = m.force_end && written == m.max_decode_length - 1;
  if (!ends && (written < 1 || written > forced)) return false;
  const size_t next = ends ? end : static_cast<size_t>(m.forced[static_cast<size_t>(written) - 1]);
  const float score = scores[next];
  std::ranges::fill(scores, never);
  scores[next] = std::max(score, std::numeric_limits<float>::lowest());
  return true;
}

// Whether restrict_scores ever changes any.
inline bool restricts(const Manifest& m) {
  return !m.suppressed.empty() || !m.suppressed_first.empty() || !m.forced.empty() || m.min_decode_length > 0 ||
         m.force_end;
}

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

}  // namespace attnkit::core
