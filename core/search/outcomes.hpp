// The outcome of each example under a placement.  All placements see the same examples, so they are compared in pairs:
// the spread of a difference is that of the differences by example, which is far smaller than the spread of either
// quality.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "core/search/bleu.hpp"
#include "core/search/quality.hpp"

namespace attnkit::core::search {

// By example, in the data set's order; `pairs` of greedy decoding alone.
struct Outcomes {
  std::vector<int32_t> tokens, right;
  std::vector<float> nll;  // nats; of vectors 1 - cosine
  std::vector<BleuStats> pairs;

  void resize(size_t examples);
  void set(size_t example, int64_t count, int64_t right_ones, double nats);
  // Puts the outcomes of examples [from, from + piece) in their place.
  void put(size_t from, const Outcomes& piece);
};

// Arrays by member; "pairs" has the ten counts of each.
void to_json(nlohmann::json& json, const Outcomes& outcomes);
void from_json(const nlohmann::json& json, Outcomes& outcomes);

// Is each of the first n examples right or wrong as a whole, by this metric?
bool is_share(Metric metric, const Outcomes& outcomes, size_t n);

// The score_of() a metric of the first n examples; NaN without any, or without tokens.
double score_of(Metric metric, const Outcomes& outcomes, size_t n);

// By example how much it moves that score (the score's empirical influence function): the mean is 0, and the variance
// of a score, or of a sum of scores of several placements, is that of the same sum of influences over n.  Each metric
// is a smooth function of sums over examples, whose gradient gives them.
std::vector<double> influences(Metric metric, const Outcomes& outcomes, size_t n);

// A difference of scores on the same n examples, candidate minus other, with its 95 % interval.
struct Difference {
  double value = 0;
  Interval interval{0, 0};
  // exact: McNemar's exact test, two-sided: the chance of a split as uneven as this of the examples that one has right
  // and the other has not.  1 for other metrics.
  double p = 1;
};

// bleu: a paired bootstrap (Koehn 2004) with 1,000 resamples; exact: Wald's interval with two more examples, one for
// each side (after Agresti and Min 2005), so that no difference in none of n examples is not taken for certainty; else
// by influences.
// Without resampling bleu's is by influences as well, which is a thousand times as fast.
Difference difference(Metric metric, const Outcomes& candidate, const Outcomes& other, size_t n, bool resample = true);

}  // namespace attnkit::core::search
