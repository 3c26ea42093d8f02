// Quality of a placement: sums over examples that add up over calls, and the metrics made from them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/search/statistics.hpp"

namespace attnkit::core::search {

enum class Metric { exact, bleu, accuracy, perplexity, cosine };

// In the order of the enum.
inline const std::vector<std::string> metric_names = {"exact", "bleu", "accuracy", "perplexity", "cosine"};

// Sums over examples (one output sequence each).  Squares and products are of an example's totals: what the variance of
// a ratio of two sums needs.
struct QualitySums {
  int64_t examples = 0;
  int64_t exact = 0;  // examples without a wrong token
  int64_t tokens = 0;
  int64_t right = 0;  // tokens
  double nll = 0;     // negative log-likelihood of the examples, nats; of vectors 1 - cosine, each of one token
  double nll_squared = 0;
  double tokens_squared = 0;
  double nll_tokens = 0;
  double right_squared = 0;
  double right_tokens = 0;

  QualitySums& operator+=(const QualitySums& other);
  bool operator==(const QualitySums&) const = default;
};

// Of one example.
QualitySums sums_of_example(bool exact, int64_t tokens, int64_t right, double nll);

// An object with the members' names, and "lists" for examples.  JSON has no number for what is not finite: it becomes
// null, and null NaN.
void to_json(nlohmann::json& json, const QualitySums& sums);
void from_json(const nlohmann::json& json, QualitySums& sums);

// exact, bleu and accuracy are percentages; perplexity is 1 at best, and lower is better; cosine is that of an
// embedding's vector to the one that the model gives as it is, the mean over examples.  Both functions give NaN
// where there are no examples or no tokens, and throw Failure for bleu, which is not a function of these sums
// (bleu.hpp).
double value_of(Metric metric, const QualitySums& sums);
// 95 %: Wilson for exact; for the others the delta method on a ratio of sums over examples, on the
// logarithm for perplexity.  The latter need two examples, or are NaN, and have no width when all are alike.
Interval interval_of(Metric metric, const QualitySums& sums);

// A value on a scale where higher is better and differences mean something: minus the nats per token for perplexity,
// and the value itself for the others.
double score_of(Metric metric, double value);

// candidate / baseline, or the inverse for perplexity: 1 is as good as the baseline, less is worse.  Equal values have
// 1 even at 0, and a baseline of 0 makes every better value infinitely good.
double ratio_of(Metric metric, double candidate, double baseline);

}  // namespace attnkit::core::search
