// The best of the scores of a row, and their sum, whole vectors at a time: a vocabulary is wide, and one by one its
// scores would cost as much as a small model does.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace attnkit::core {

inline bool all_numbers(std::span<const float> scores) {
  bool numbers = true;
  for (const float s : scores) numbers &= s == s;
  return numbers;
}

// The id of the highest score, the first among equals.  Returns nothing when any of the scores is NaN, or there is
// none.
std::optional<int32_t> best_token(std::span<const float> scores);

// log(sum of exp(score - top)), top: the highest of the scores.  NaN where one is, and where top is not finite.
double log_sum_over(std::span<const float> scores, float top);
// log(sum of exp(score)), the normaliser of log probabilities, of at least one.
double log_sum(std::span<const float> scores);

}  // namespace attnkit::core
