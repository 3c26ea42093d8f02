// The rules of greedy decoding, the same in sessions and in hosts that decode batches.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

namespace attnkit::core {

// The message for scores without a best token.
inline std::string nan_message(int64_t tokens) {
  return fmt::format("the model's scores are not numbers (NaN) after {} tokens: its weights or a mechanism are broken",
                     tokens);
}

// Whether a score is not that of a token that [decode] suppresses.
inline bool may_come(float score) { return score > -std::numeric_limits<float>::infinity(); }

// The message for scores of which none may come.
inline std::string nothing_left_message(int64_t tokens) {
  return fmt::format(
      "no token may follow after {} tokens: suppress, suppress_first and min_length of [decode] leave none", tokens);
}

// The most tokens that are made of a source when nothing else limits them.
inline int64_t default_limit(int64_t source_length, int64_t max_length) {
  return std::min(max_length, source_length * 3 / 2 + 20);
}

}  // namespace attnkit::core
