#include "core/search/ranking.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "core/search/pareto.hpp"
#include "core/search/rcp.hpp"

namespace attnkit::search {
namespace {

std::string limit_of(const Ranked& r, const RankingInput& input) {
  const Limits& limits = input.settings.limits;
  const int64_t length = input.settings.length;
  if (limits.min_quality_ratio && r.quality && r.baseline_quality) {
    const double ratio = ratio_of(input.settings.metric, r.quality->value, r.baseline_quality->value);
    if (!(ratio >= *limits.min_quality_ratio))
      return fmt::format("min_quality_ratio: {:.4f} is below {}", ratio, *limits.min_quality_ratio);
  }
  const uint64_t state = input.declared.of(r.record->placement, length).state_bytes;
  if (limits.max_state && state > *limits.max_state)
    return fmt::format("max_state: {} bytes at {} tokens are above {}", state, length, *limits.max_state);
  const std::optional<double> latency = cost_of(*r.record, length, "latency");
  if (limits.max_latency && latency && *latency > *limits.max_latency)
    return fmt::format("max_latency: {:.0f} us a token at {} tokens are above {:.0f} us", *latency * 1e6, length,
                       *limits.max_latency * 1e6);
  return "";
}

// Short measurements spread so widely that some of them would dominate every long one.
std::vector<double> objectives(const Ranked& r, Metric metric, int64_t most_lists) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  if (!r.quality || r.quality->lists < most_lists) return {none, none, none};
  return {score_of(metric, r.quality->value), r.throughput.value_or(none), -r.memory.value_or(1)};
}

// Higher is better; no value sorts behind all values, by Pareto front and quality there.
std::tuple<int64_t, bool, double, bool, double> order_of(const Ranked& r, const Settings& settings) {
  const std::optional<double> value = rank_value(r, settings);
  return {r.quality->lists, value.has_value(), value.value_or(0), r.pareto,
          score_of(settings.metric, r.quality->value)};
}

}  // namespace

std::optional<double> rank_value(const Ranked& ranked, const Settings& settings) {
  switch (settings.rank) {
    case Rank::rcp:
      return ranked.rcp;
    case Rank::rcp_mem:
      return ranked.rcp_mem;
    case Rank::throughput:
      return ranked.throughput;
    case Rank::quality:
      break;
  }
  if (!ranked.quality) return {};
  return score_of(settings.metric, ranked.quality->value);
}

// Differences to the baseline are taken on the same lists.
Ranked standing(const Record& record, const RankingInput& input) {
  const Settings& settings = input.settings;
  Ranked r;
  r.record = &record;
  if (!record.usable()) return r;
  const int64_t lists = std::min({record.lists(settings.metric), input.baseline.lists(settings.metric), input.lists});
  r.quality = quality_of(record, settings.metric, lists);
  r.throughput = throughput_of(record, settings.length);
  r.memory = memory_of(record, settings.length);
  r.baseline_quality = quality_of(input.baseline, settings.metric, lists);
  const std::optional<Quality>& baseline = r.baseline_quality;
  r.limit = limit_of(r, input);
  if (!r.quality || !baseline || !r.throughput) return r;
  const double own = score_of(settings.metric, r.quality->value), other = score_of(settings.metric, baseline->value);
  const double std_bench = input.std_bench.value_or(0);
  r.rcp = rcp(*r.throughput, own, other, std_bench, settings.weights);
  if (r.memory) r.rcp_mem = rcp_mem(*r.throughput, own, other, std_bench, *r.memory, settings.weights);
  return r;
}

bool is_rankable(const Ranked& ranked) {
  return ranked.record->usable() && ranked.limit.empty() && ranked.quality && ranked.throughput;
}

bool is_before(const Ranked& a, const Ranked& b, const Settings& settings) {
  return order_of(a, settings) > order_of(b, settings);
}

std::vector<Ranked> rank(const std::vector<const Record*>& records, const RankingInput& input) {
  std::vector<Ranked> all;
  std::vector<std::vector<double>> points;
  int64_t most_lists = 0;
  for (const Record* record : records) {
    all.push_back(standing(*record, input));
    if (all.back().quality) most_lists = std::max(most_lists, all.back().quality->lists);
  }
  for (const Ranked& r : all) points.push_back(objectives(r, input.settings.metric, most_lists));
  const std::vector<bool> front = nondominated(points);
  for (size_t i = 0; i < all.size(); ++i) all[i].pareto = front[i] && all[i].quality && all[i].throughput;
  const auto group = [](const Ranked& r) {
    return !r.record->usable() ? 3 : !r.limit.empty() ? 2 : !is_rankable(r) ? 1 : 0;
  };
  std::stable_sort(all.begin(), all.end(), [&](const Ranked& a, const Ranked& b) {
    if (group(a) != group(b)) return group(a) < group(b);
    return group(a) == 0 && is_before(a, b, input.settings);
  });
  for (size_t i = 0; i < all.size() && group(all[i]) == 0; ++i) all[i].rank = static_cast<int>(i) + 1;
  return all;
}

}  // namespace attnkit::search
