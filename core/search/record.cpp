#include "core/search/record.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attnkit::search {

using Json = nlohmann::json;

int64_t Record::lists(Metric metric) const {
  int64_t end = 0;
  if (metric == Metric::bleu)
    for (const auto& [name, answer] : greedy)
      if (name.starts_with("data ")) end = std::max<int64_t>(end, answer["lists"]);
  if (metric == Metric::bleu) return end;
  for (const auto& [range, sums] : quality)
    if (range.first == end) end = range.second;
  return end;
}

std::vector<QualitySums> Record::sums(int64_t lists) const {
  std::vector<QualitySums> total;
  for (const auto& [range, sums] : quality) {
    if (range.second > lists) continue;
    total.resize(sums.size());
    for (size_t b = 0; b < sums.size(); ++b) total[b] += sums[b];
  }
  return total;
}

std::optional<Quality> quality_of(const Record& record, Metric metric, int64_t lists) {
  if (metric == Metric::bleu) {
    const auto at = record.greedy.find(fmt::format("data 0-{}", lists));
    if (at == record.greedy.end()) return {};
    return Quality{at->second["bleu"], {at->second["bleu_low"], at->second["bleu_high"]}, lists};
  }
  if (lists == 0 || record.lists(metric) < lists) return {};
  QualitySums total;
  for (const QualitySums& bucket : record.sums(lists)) total += bucket;
  return Quality{value_of(metric, total), interval_of(metric, total), lists};
}

std::optional<double> cost_of(const Record& record, int64_t length, const char* key) {
  const auto at = record.costs.find(length);
  if (at == record.costs.end() || !at->second.contains(key) || !at->second[key].is_number()) return {};
  return at->second[key].get<double>();
}

std::optional<double> throughput_of(const Record& record, int64_t length) {
  const std::optional<double> decode = cost_of(record, length, "decode_ratio");
  return decode ? decode : cost_of(record, length, "prefill_ratio");
}

std::optional<double> memory_of(const Record& record, int64_t length) {
  const auto ratio = [&](const char* own, const char* baseline) -> std::optional<double> {
    const auto a = cost_of(record, length, own), b = cost_of(record, length, baseline);
    return a && b && *a > 0 && *b > 0 ? std::optional<double>(*a / *b) : std::nullopt;
  };
  return ratio("peak_bytes", "baseline_peak_bytes");
}

}  // namespace attnkit::search
