#include "core/search/quality.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

double ratio(double part, double whole) { return whole == 0 ? kUndefined : part / whole; }

// Half the 95 % interval of (sum of y) / (sum of x) over examples, from their sums of squares and products.
double half_width(const QualitySums& sums, double y, double y_squared, double y_tokens) {
  if (sums.examples < 2 || sums.tokens == 0) return kUndefined;
  const double n = static_cast<double>(sums.examples), tokens = static_cast<double>(sums.tokens), r = y / tokens;
  const double residual = y_squared - 2 * r * y_tokens + r * r * sums.tokens_squared;
  // Cancellation may leave a little less than nothing; std::max would turn a NaN into 0 with its arguments swapped.
  return kNormal95 * std::sqrt(std::max(residual, 0.0) * n / (n - 1)) / tokens;
}

// The members with their names in JSON.
constexpr std::pair<const char*, int64_t QualitySums::*> counts[] = {{"lists", &QualitySums::examples},
                                                                     {"exact", &QualitySums::exact},
                                                                     {"tokens", &QualitySums::tokens},
                                                                     {"right", &QualitySums::right}};
constexpr std::pair<const char*, double QualitySums::*> products[] = {{"nll", &QualitySums::nll},
                                                                      {"nll_squared", &QualitySums::nll_squared},
                                                                      {"tokens_squared", &QualitySums::tokens_squared},
                                                                      {"nll_tokens", &QualitySums::nll_tokens},
                                                                      {"right_squared", &QualitySums::right_squared},
                                                                      {"right_tokens", &QualitySums::right_tokens}};

}  // namespace

QualitySums& QualitySums::operator+=(const QualitySums& other) {
  for (const auto& [name, member] : counts) this->*member += other.*member;
  for (const auto& [name, member] : products) this->*member += other.*member;
  return *this;
}

QualitySums sums_of_example(bool exact, int64_t tokens, int64_t right, double nll) {
  const double t = static_cast<double>(tokens), r = static_cast<double>(right);
  return {1, exact ? 1 : 0, tokens, right, nll, nll * nll, t * t, nll * t, r * r, r * t};
}

void to_json(nlohmann::json& json, const QualitySums& sums) {
  for (const auto& [name, member] : counts) json[name] = sums.*member;
  for (const auto& [name, member] : products) json[name] = sums.*member;
}

void from_json(const nlohmann::json& json, QualitySums& sums) {
  for (const auto& [name, member] : counts) json.at(name).get_to(sums.*member);
  for (const auto& [name, member] : products)
    sums.*member = json.at(name).is_null() ? kUndefined : json[name].get<double>();
}

double value_of(Metric metric, const QualitySums& sums) {
  const double tokens = static_cast<double>(sums.tokens);
  if (metric == Metric::exact) return 100 * ratio(static_cast<double>(sums.exact), static_cast<double>(sums.examples));
  if (metric == Metric::accuracy) return 100 * ratio(static_cast<double>(sums.right), tokens);
  if (metric == Metric::perplexity) return std::exp(ratio(sums.nll, tokens));
  if (metric == Metric::cosine) return 1 - ratio(sums.nll, tokens);
  fail(Fault::internal, "bleu is no function of quality sums; compute it from the decoded texts");
}

Interval interval_of(Metric metric, const QualitySums& sums) {
  // Of one token each, as classes are, examples are right or wrong as well.
  if (metric == Metric::exact || (metric == Metric::accuracy && sums.tokens == sums.examples)) {
    if (sums.examples == 0) return {kUndefined, kUndefined};
    const Interval share = wilson(sums.exact, sums.examples);
    return {100 * share.low, 100 * share.high};
  }
  const double value = value_of(metric, sums);
  if (metric == Metric::accuracy) {
    const double half = 100 * half_width(sums, static_cast<double>(sums.right), sums.right_squared, sums.right_tokens);
    return std::isnan(half) ? Interval{kUndefined, kUndefined}
                            : Interval{std::max(value - half, 0.0), std::min(value + half, 100.0)};
  }
  const double half = half_width(sums, sums.nll, sums.nll_squared, sums.nll_tokens);
  if (metric == Metric::cosine)
    return std::isnan(half) ? Interval{kUndefined, kUndefined}
                            : Interval{std::max(value - half, -1.0), std::min(value + half, 1.0)};
  return {value / std::exp(half), value * std::exp(half)};
}

double score_of(Metric metric, double value) { return metric == Metric::perplexity ? -std::log(value) : value; }

double ratio_of(Metric metric, double candidate, double baseline) {
  if (candidate == baseline) return 1;
  return metric == Metric::perplexity ? baseline / candidate : candidate / baseline;
}

}  // namespace attnkit::core::search
