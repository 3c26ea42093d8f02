// The normaliser of log probabilities, whole vectors at a time: a vocabulary is wide, and its exponentials would cost
// as much as a small model does.
#pragma once

#include <span>

namespace attnkit::core {

// log(sum of exp(score - top)), top: the highest of the scores.  NaN where one is, and where top is not finite.
double log_sum_over(std::span<const float> scores, float top);
// log(sum of exp(score)), of at least one.
double log_sum(std::span<const float> scores);

}  // namespace attnkit::core
