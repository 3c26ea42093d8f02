#include "core/search/answer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace attnkit::search {
namespace {

std::string label(const Space& space, int choice) { return space.choices[static_cast<size_t>(choice)].label; }

std::string roles_text(const Space& space, const Placement& placement) {
  std::string out;
  for (uint32_t role : roles_of(space)) {
    const auto [first, last] = sites_of(space, role);
    std::string layers = label(space, placement[first]);
    const bool mixed = std::any_of(placement.begin() + static_cast<std::ptrdiff_t>(first),
                                   placement.begin() + static_cast<std::ptrdiff_t>(last),
                                   [&](int c) { return c != placement[first]; });
    for (size_t s = first + 1; mixed && s < last; ++s) layers += "-" + label(space, placement[s]);
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", role_name(role), layers);
  }
  return out;
}

std::string baseline_name(const Space& space) {
  const bool one =
      std::all_of(space.baseline.begin(), space.baseline.end(), [&](int c) { return c == space.baseline.front(); });
  return one ? label(space, space.baseline.front()) : "the baseline";
}

const char* metric_text(Metric metric) {
  return metric == Metric::exact      ? "exact match"
         : metric == Metric::bleu     ? "BLEU"
         : metric == Metric::accuracy ? "accuracy"
                                      : "perplexity";
}

// "1/15 of" or "2.3 times".
std::string fraction_text(double ratio) {
  if (ratio > 0.95) return fmt::format("{:.1f} times", ratio);
  return 1 / ratio < 9.95 ? fmt::format("1/{:.1f} of", 1 / ratio) : fmt::format("1/{:.0f} of", 1 / ratio);
}

// What the blocks whose choice differs from the baseline's keep, against what the baseline keeps there.
std::string state_text(const AnswerInput& input) {
  const Placement& placement = input.winner.record->placement;
  uint64_t own = 0, theirs = 0;
  std::string roles;
  for (uint32_t role : roles_of(input.space)) {
    uint64_t before = theirs;
    const auto [first, last] = sites_of(input.space, role);
    for (size_t s = first; s < last; ++s) {
      if (placement[s] == input.space.baseline[s]) continue;
      own += input.declared.of(s, placement[s], input.settings.length).state_bytes;
      theirs += input.declared.of(s, input.space.baseline[s], input.settings.length).state_bytes;
    }
    if (theirs > before) roles += (roles.empty() ? "" : " and ") + std::string(role_name(role));
  }
  if (own == 0 || theirs == 0 || own == theirs) return "";
  const double ratio = static_cast<double>(own) / static_cast<double>(theirs);
  return fmt::format(" and {} the state of {}", fraction_text(ratio), roles);
}

std::string quality_text(const AnswerInput& input) {
  const Metric metric = input.settings.metric;
  const std::string name = baseline_name(input.space);
  double own = input.winner.quality->value, theirs = input.baseline.quality->value;
  const char* where = "";
  if (input.test) {
    const auto value = [&](const Ranked& r) {
      for (const auto& [split, answer] : r.record->greedy)
        if (split.starts_with("test "))
          return metric == Metric::bleu ? answer["bleu"].get<double>() : [&] {
            QualitySums total;
            for (const auto& bucket : answer["sums"]) total += bucket.get<QualitySums>();
            return value_of(metric, total);
          }();
      return 0.0;
    };
    own = value(input.winner);
    theirs = value(input.baseline);
    where = " on the test set";
  }
  if (metric == Metric::perplexity)
    return fmt::format("has perplexity {:.3f} against {:.3f} of {}{}", own, theirs, name, where);
  return fmt::format("keeps {:.1f} % of {}'s {}{}", theirs > 0 ? 100 * own / theirs : 100, name, metric_text(metric),
                     where);
}

std::string crossover_text(const AnswerInput& input) {
  const Record& record = *input.winner.record;
  if (record.costs.size() < 2 || !cost_of(record, record.costs.begin()->first, "decode_ratio")) return "";
  const std::optional<int64_t> tokens = crossover(record);
  const std::string name = baseline_name(input.space);
  if (!tokens) return fmt::format("; {} is as fast at every length measured", name);
  if (*tokens == 0)
    return fmt::format("; it is faster from {} tokens on, the fewest measured", record.costs.begin()->first);
  return fmt::format("; below {} tokens {} is as fast", *tokens, name);
}

}  // namespace

std::optional<int64_t> crossover(const Record& record) {
  // Within the spread of the timings the two count as equally fast.
  const auto faster = [&](int64_t length) { return cost_of(record, length, "decode_ratio_low").value_or(0) > 1; };
  std::optional<int64_t> before;
  for (const auto& [length, cost] : record.costs) {
    if (!cost_of(record, length, "decode_ratio")) continue;
    if (faster(length)) {
      if (!before) return 0;
      const double a = *cost_of(record, *before, "decode_ratio") - 1, b = *cost_of(record, length, "decode_ratio") - 1;
      const double share = b > a ? std::clamp(-a / (b - a), 0.0, 1.0) : 0;
      return *before + static_cast<int64_t>(std::lround(share * static_cast<double>(length - *before)));
    }
    before = length;
  }
  return {};
}

std::string answer_text(const AnswerInput& input) {
  const Placement& placement = input.winner.record->placement;
  if (placement == input.space.baseline)
    return fmt::format("at {} tokens: {}; nothing that was tried ranks above the baseline", input.settings.length,
                       roles_text(input.space, placement));
  const bool decodes = cost_of(*input.winner.record, input.settings.length, "decode_ratio").has_value();
  return fmt::format("at {} tokens: {} {} at {:.2f}x its {} throughput{}{}", input.settings.length,
                     roles_text(input.space, placement), quality_text(input), input.winner.throughput.value_or(1),
                     decodes ? "decode" : "prefill", state_text(input), crossover_text(input));
}

}  // namespace attnkit::search
