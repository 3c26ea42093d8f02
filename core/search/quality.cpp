// Quality of a placement: sums over lists that add up over calls, and the metrics made from them.
#include "core/search/quality.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/search/failure.hpp"

namespace attnkit::search {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::array kMetrics{Metric::exact, Metric::bleu, Metric::accuracy, Metric::perplexity};

double ratio(double part, double whole) { return whole == 0 ? kNaN : part / whole; }

// Half the 95 % interval of (sum of y) / (sum of x) over lists, from their sums of squares and products.
double half_width(const QualitySums& sums, double y, double y_squared, double y_tokens) {
  if (sums.lists < 2 || sums.tokens == 0) return kNaN;
  const double lists = static_cast<double>(sums.lists), tokens = static_cast<double>(sums.tokens), r = y / tokens;
  const double residual = y_squared - 2 * r * y_tokens + r * r * sums.tokens_squared;
  // Cancellation may leave a little less than nothing; std::max would turn a NaN into 0 with its arguments swapped.
  return kNormal95 * std::sqrt(std::max(residual, 0.0) * lists / (lists - 1)) / tokens;
}

[[noreturn]] void fail_bleu() {
  fail(Fault::internal, "bleu is no function of quality sums; compute it from the decoded texts");
}

double number_of(const nlohmann::json& json, const char* key) {
  const nlohmann::json& value = json.at(key);
  return value.is_null() ? kNaN : value.get<double>();
}

}  // namespace

const char* metric_name(Metric metric) {
  switch (metric) {
    case Metric::exact:
      return "exact";
    case Metric::bleu:
      return "bleu";
    case Metric::accuracy:
      return "accuracy";
    case Metric::perplexity:
      break;
  }
  return "perplexity";
}

std::optional<Metric> metric_named(std::string_view name) {
  for (Metric metric : kMetrics)
    if (name == metric_name(metric)) return metric;
  return std::nullopt;
}

QualitySums& QualitySums::operator+=(const QualitySums& other) {
  lists += other.lists;
  exact += other.exact;
  tokens += other.tokens;
  right += other.right;
  nll += other.nll;
  nll_squared += other.nll_squared;
  tokens_squared += other.tokens_squared;
  nll_tokens += other.nll_tokens;
  right_squared += other.right_squared;
  right_tokens += other.right_tokens;
  return *this;
}

QualitySums sums_of_list(bool exact, int64_t tokens, int64_t right, double nll) {
  const double t = static_cast<double>(tokens), r = static_cast<double>(right);
  return {1, exact ? 1 : 0, tokens, right, nll, nll * nll, t * t, nll * t, r * r, r * t};
}

void to_json(nlohmann::json& json, const QualitySums& sums) {
  json = {{"lists", sums.lists},
          {"exact", sums.exact},
          {"tokens", sums.tokens},
          {"right", sums.right},
          {"nll", sums.nll},
          {"nll_squared", sums.nll_squared},
          {"tokens_squared", sums.tokens_squared},
          {"nll_tokens", sums.nll_tokens},
          {"right_squared", sums.right_squared},
          {"right_tokens", sums.right_tokens}};
}

void from_json(const nlohmann::json& json, QualitySums& sums) {
  json.at("lists").get_to(sums.lists);
  json.at("exact").get_to(sums.exact);
  json.at("tokens").get_to(sums.tokens);
  json.at("right").get_to(sums.right);
  sums.nll = number_of(json, "nll");
  sums.nll_squared = number_of(json, "nll_squared");
  sums.tokens_squared = number_of(json, "tokens_squared");
  sums.nll_tokens = number_of(json, "nll_tokens");
  sums.right_squared = number_of(json, "right_squared");
  sums.right_tokens = number_of(json, "right_tokens");
}

double value_of(Metric metric, const QualitySums& sums) {
  const double tokens = static_cast<double>(sums.tokens);
  switch (metric) {
    case Metric::exact:
      return 100 * ratio(static_cast<double>(sums.exact), static_cast<double>(sums.lists));
    case Metric::accuracy:
      return 100 * ratio(static_cast<double>(sums.right), tokens);
    case Metric::perplexity:
      return std::exp(ratio(sums.nll, tokens));
    case Metric::bleu:
      break;
  }
  fail_bleu();
}

Interval interval_of(Metric metric, const QualitySums& sums) {
  if (metric == Metric::exact) {
    if (sums.lists == 0) return {kNaN, kNaN};
    const Interval share = wilson(sums.exact, sums.lists);
    return {100 * share.low, 100 * share.high};
  }
  const double value = value_of(metric, sums);
  if (metric == Metric::accuracy) {
    const double half = 100 * half_width(sums, static_cast<double>(sums.right), sums.right_squared, sums.right_tokens);
    return std::isnan(half) ? Interval{kNaN, kNaN}
                            : Interval{std::max(value - half, 0.0), std::min(value + half, 100.0)};
  }
  const double factor = std::exp(half_width(sums, sums.nll, sums.nll_squared, sums.nll_tokens));
  return {value / factor, value * factor};
}

double score_of(Metric metric, double value) { return metric == Metric::perplexity ? -std::log(value) : value; }

double ratio_of(Metric metric, double candidate, double baseline) {
  if (candidate == baseline) return 1;
  return metric == Metric::perplexity ? baseline / candidate : candidate / baseline;
}

}  // namespace attnkit::search
