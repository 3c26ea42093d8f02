#include "core/search/ranking.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace attnkit::core::search {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr int resamples = 1000;
constexpr uint64_t seed = 1;

QualitySums total_of(const Record& record, int64_t examples) {
  QualitySums total;
  for (const QualitySums& bucket : record.sums(examples)) total += bucket;
  return total;
}

// The ratio to the baseline's throughput, in one block or at a length; of a model without decoder that of the whole
// pass.
std::optional<double> speed_of(const nlohmann::json& at) {
  for (const char* key : {"decode_ratio", "prefill_ratio"})
    if (at.contains(key) && at[key].is_number()) return at[key].get<double>();
  return {};
}

std::optional<double> memory_of(const Record& record, int64_t length) {
  const auto own = cost_of(record, length, "peak_bytes"), other = cost_of(record, length, "baseline_peak_bytes");
  return own && other && *own > 0 && *other > 0 ? std::optional(*own / *other) : std::nullopt;
}

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
    return fmt::format("max_latency: {:.0f} \u00b5s a token at {} tokens are above {:.0f} \u00b5s", *latency * 1e6,
                       length, *limits.max_latency * 1e6);
  return "";
}

// Measured as far as a rank needs, and within the limits.
bool is_rankable(const Ranked& r) { return r.record->usable() && r.limit.empty() && r.quality && r.throughput; }

double order_of(const Ranked& r, const RankingInput& input) {
  const Settings& settings = input.settings;
  constexpr double infinite = std::numeric_limits<double>::infinity();
  const bool weighs = settings.rank == Rank::rcp || settings.rank == Rank::rcp_mem;
  const double std_bench = input.std_bench.value_or(0);
  if (weighs && settings.weights.weighs_quality() && !(std_bench > 0)) return 0;
  if (const std::optional<double> value = rank_value(r, settings)) return *value;
  const bool is_measured = r.quality && r.baseline_quality && r.throughput && (settings.rank == Rank::rcp || r.memory);
  const auto score = [&](const Quality& quality) { return score_of(settings.metric, quality.value); };
  return weighs && is_measured &&
                 is_beyond_values(score(*r.quality), score(*r.baseline_quality), std_bench, settings.weights)
             ? infinite
             : -infinite;
}

// Does it come before another, both rankable?
bool is_before(const Ranked& a, const Ranked& b, const Settings& settings) {
  const auto order = [&](const Ranked& r) {
    return std::tuple(r.quality->examples, r.order, r.pareto, score_of(settings.metric, r.quality->value),
                      rank_value(r, settings).value_or(0));
  };
  return order(a) > order(b);
}

}  // namespace

int64_t Record::examples() const {
  int64_t end = 0;
  for (const auto& [range, sums] : quality)
    if (range.first == end) end = range.second;
  return end;
}

std::vector<QualitySums> Record::sums(int64_t examples) const {
  std::vector<QualitySums> total;
  for (const auto& [range, sums] : quality) {
    if (range.second > examples) continue;
    total.resize(sums.size());
    for (size_t b = 0; b < sums.size(); ++b) total[b] += sums[b];
  }
  return total;
}

std::optional<Quality> quality_of(const Record& record, Metric metric, int64_t examples) {
  if (examples == 0 || record.examples() < examples) return {};
  if (metric == Metric::bleu)
    return Quality{score_of(metric, record.outcomes, static_cast<size_t>(examples)), examples};
  return Quality{value_of(metric, total_of(record, examples)), examples};
}

Interval interval_of(const Record& record, Metric metric, int64_t examples) {
  if (metric == Metric::bleu)
    return bleu_interval({record.outcomes.pairs.data(), static_cast<size_t>(examples)}, resamples, seed);
  return interval_of(metric, total_of(record, examples));
}

std::optional<double> cost_of(const Record& record, int64_t length, const char* key) {
  const auto at = record.costs.find(length);
  if (at == record.costs.end() || !at->second.contains(key) || !at->second[key].is_number()) return {};
  return at->second[key].get<double>();
}

std::optional<double> rank_value(const Ranked& ranked, const Settings& settings) {
  if (settings.rank == Rank::rcp) return ranked.rcp;
  if (settings.rank == Rank::rcp_mem) return ranked.rcp_mem;
  if (settings.rank == Rank::throughput) return ranked.throughput;
  if (!ranked.quality) return {};
  return score_of(settings.metric, ranked.quality->value);
}

Racer racer_of(const Record& record, const RankingInput& input) {
  const Settings& settings = input.settings;
  Racer racer{&record.outcomes, {}, memory_of(record, settings.length).value_or(kUnknown), record.usable()};
  double best = std::numeric_limits<double>::infinity();
  for (const nlohmann::json& at : record.blocks) {
    racer.speeds.push_back(speed_of(at).value_or(kUnknown));
    if (at.contains("latency")) best = std::min(best, at["latency"].get<double>());
  }
  const Limits& limits = settings.limits;
  if (limits.max_state && input.declared.of(record.placement, settings.length).state_bytes > *limits.max_state)
    racer.usable = false;
  if (limits.max_latency && std::isfinite(best) && best > *limits.max_latency) racer.usable = false;
  return racer;
}

// Differences to the baseline are taken on the same examples.
Ranked standing(const Record& record, const RankingInput& input) {
  const Settings& settings = input.settings;
  Ranked r;
  r.record = &record;
  if (!record.usable()) return r;
  const int64_t examples = std::min({record.examples(), input.baseline.examples(), input.examples});
  r.quality = quality_of(record, settings.metric, examples);
  if (const auto at = record.costs.find(settings.length); at != record.costs.end()) r.throughput = speed_of(at->second);
  r.memory = memory_of(record, settings.length);
  r.baseline_quality = quality_of(input.baseline, settings.metric, examples);
  r.limit = limit_of(r, input);
  if (!r.quality || !r.baseline_quality || !r.throughput) return r;
  const double own = score_of(settings.metric, r.quality->value), std_bench = input.std_bench.value_or(0);
  const double other = score_of(settings.metric, r.baseline_quality->value);
  r.rcp = rcp(*r.throughput, own, other, std_bench, settings.weights);
  if (r.memory) r.rcp_mem = rcp_mem(*r.throughput, own, other, std_bench, *r.memory, settings.weights);
  r.order = order_of(r, input);
  return r;
}

std::vector<Ranked> rank(const std::vector<const Record*>& records, const RankingInput& input) {
  std::vector<Ranked> all;
  Points points;
  int64_t max_examples = 0;
  for (const Record* record : records) {
    all.push_back(standing(*record, input));
    if (all.back().quality) max_examples = std::max(max_examples, all.back().quality->examples);
  }
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  for (const Ranked& r : all)
    // Short measurements spread so widely that some of them would dominate every long one.
    if (!r.quality || r.quality->examples < max_examples)
      points.push_back({none, none, none});
    else
      points.push_back(
          {score_of(input.settings.metric, r.quality->value), r.throughput.value_or(none), -r.memory.value_or(1)});
  const std::vector<bool> front = nondominated(points);
  for (size_t i = 0; i < all.size(); ++i) all[i].pareto = front[i] && all[i].quality && all[i].throughput;
  const auto group = [](const Ranked& r) {
    return !r.record->usable() ? 3 : !r.limit.empty() ? 2 : !is_rankable(r) ? 1 : 0;
  };
  std::ranges::stable_sort(all, [&](const Ranked& a, const Ranked& b) {
    if (group(a) != group(b)) return group(a) < group(b);
    return group(a) == 0 && is_before(a, b, input.settings);
  });
  for (size_t i = 0; i < all.size() && group(all[i]) == 0; ++i) all[i].rank = static_cast<int>(i) + 1;
  return all;
}

const Ranked* Leader::update(const Record& changed, const std::deque<Record>& all) {
  if (is_stale_ || (leader_ && leader_->record == &changed)) {
    leader_.reset();
    is_stale_ = false;
    for (const Record& record : all) consider(record);
  } else {
    consider(changed);
  }
  return leader_ ? &*leader_ : nullptr;
}

void Leader::consider(const Record& record) {
  Ranked ranked = standing_(record);
  if (is_rankable(ranked) && (!leader_ || is_before(ranked, *leader_, settings_))) leader_ = std::move(ranked);
}

}  // namespace attnkit::core::search
