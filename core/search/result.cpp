#include "core/search/result.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/search/answer.hpp"
#include "core/search/statistics.hpp"

namespace attnkit::search {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json maybe(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::string label(const Search& search, int choice) {
  return search.space().choices[static_cast<size_t>(choice)].label;
}

Json blocks_json(const Search& search, const Placement& placement) {
  Json blocks = Json::object();
  for (uint32_t role : roles_of(search.space())) {
    Json& layers = blocks[role_name(role)] = Json::array();
    const auto [first, last] = sites_of(search.space(), role);
    for (size_t s = first; s < last; ++s) layers.push_back(label(search, placement[s]));
  }
  return blocks;
}

Json quality_json(const QualitySums& sums, Metric metric) {
  const Interval interval = interval_of(metric, sums);
  return {{"value", value_of(metric, sums)}, {"low", interval.low}, {"high", interval.high}, {"lists", sums.lists}};
}

Json quality_of_record(const Search& search, const Ranked& r) {
  if (!r.quality) return {};
  const Metric metric = search.settings().metric;
  Json json = {{"value", r.quality->value},
               {"low", r.quality->interval.low},
               {"high", r.quality->interval.high},
               {"lists", r.quality->lists}};
  if (r.baseline_quality) json["difference"] = r.quality->value - r.baseline_quality->value;
  if (metric == Metric::bleu) return json;
  QualitySums total;
  Json buckets = Json::array();
  for (const QualitySums& sums : r.record->sums(r.quality->lists)) {
    total += sums;
    buckets.push_back(sums.lists > 0 ? quality_json(sums, metric) : Json());
  }
  json["accuracy"] = value_of(Metric::accuracy, total);
  json["perplexity"] = value_of(Metric::perplexity, total);
  json["buckets"] = std::move(buckets);
  return json;
}

Json cost_json(const Search& search, const Record& record) {
  Json at = Json::array();
  for (const auto& [length, measured] : record.costs) {
    Json cost = measured;
    const DeclaredCost declared = search.declared().of(record.placement, length);
    cost["state_bytes"] = declared.state_bytes;
    cost["flops"] = declared.flops;
    cost["step_flops"] = declared.step_flops;
    at.push_back(std::move(cost));
  }
  Json json = {{"at", std::move(at)}};
  if (!record.untimed.empty()) json["untimed"] = Json::array();
  for (const auto& [length, reason] : record.untimed)
    json["untimed"].push_back({{"length", length}, {"reason", reason}});
  if (!record.real.is_null()) json["real"] = Json(record.real);
  return json;
}

Json greedy_json(const Record& record) {
  Json json = Json::object();
  for (const auto& [name, answer] : record.greedy) {
    QualitySums total;
    for (const auto& sums : answer["sums"]) total += sums.get<QualitySums>();
    const Interval interval = interval_of(Metric::exact, total);
    json[name.substr(0, name.find(' '))] = {{"exact", value_of(Metric::exact, total)},
                                            {"low", interval.low},
                                            {"high", interval.high},
                                            {"bleu", answer["bleu"]},
                                            {"bleu_low", answer["bleu_low"]},
                                            {"bleu_high", answer["bleu_high"]},
                                            {"lists", total.lists}};
  }
  return json;
}

std::string status_of(const Ranked& r) {
  if (r.record->status == Record::Status::refused) return "refused";
  if (r.record->status == Record::Status::failed) return "failed";
  return r.limit.empty() ? "ranked" : "limited";
}

Json placement_json(const Search& search, const Ranked& r) {
  const Record& record = *r.record;
  const std::string reason = record.usable() ? r.limit : record.reason;
  Json json = {{"id", record.id},
               {"blocks", blocks_json(search, record.placement)},
               {"status", status_of(r)},
               {"reason", reason.empty() ? Json() : Json(reason)},
               {"rank", maybe(r.rank)},
               {"pareto", r.pareto},
               {"baseline", &record == &search.baseline()},
               {"finalist", search.is_finalist(record)},
               {"quality", quality_of_record(search, r)},
               {"cost", record.costs.empty() && record.untimed.empty() ? Json() : cost_json(search, record)},
               {"rcp", maybe(r.rcp)},
               {"rcp_mem", maybe(r.rcp_mem)}};
  if (!record.greedy.empty()) json["greedy"] = greedy_json(record);
  return json;
}

Json bucket_names(const Search& search) {
  Json names = Json::array();
  int64_t from = 1;
  for (const auto& bound : search.opened()["buckets"]) {
    names.push_back(fmt::format("{}-{}", from, bound.get<int64_t>()));
    from = bound.get<int64_t>() + 1;
  }
  names.push_back(fmt::format("{}+", from));
  return names;
}

// Why there is no winner.
std::string failure_text(const std::vector<Ranked>& ranking) {
  const auto is_limited = [](const Ranked& r) { return r.record->usable() && !r.limit.empty(); };
  if (std::any_of(ranking.begin(), ranking.end(), is_limited)) return "no placement is within the limits";
  std::string text = "no placement could be measured to the end";
  for (const Ranked& r : ranking)
    if (!r.record->usable()) return fmt::format("{}; the first, {}: {}", text, r.record->id, r.record->reason);
  return text;
}

Json answer_json(const Search& search, const std::vector<Ranked>& ranking) {
  const Record* winner = search.winner();
  if (!winner)
    return {{"placement", nullptr},
            {"length", search.settings().length},
            {"crossover", nullptr},
            {"text", failure_text(ranking)}};
  const auto of = [&](const Record* record) -> const Ranked& {
    return *std::find_if(ranking.begin(), ranking.end(), [&](const Ranked& r) { return r.record == record; });
  };
  const auto tested = [](const Record& record) {
    return std::any_of(record.greedy.begin(), record.greedy.end(),
                       [](const auto& entry) { return entry.first.starts_with("test "); });
  };
  const Metric metric = search.settings().metric;
  const bool test = (metric == Metric::exact || metric == Metric::bleu) && tested(*winner) && tested(search.baseline());
  const AnswerInput input{search.space(), search.settings(),      search.declared(),
                          of(winner),     of(&search.baseline()), test};
  return {{"placement", winner->id},
          {"length", search.settings().length},
          {"crossover", maybe(crossover(*winner))},
          {"text", answer_text(input)}};
}

}  // namespace

Json result_document(const Search& search) {
  const std::vector<Ranked> ranking = search.ranking();
  Json json = {{"schema", "attnkit.search/1"}, {"status", "done"}};
  json["answer"] = answer_json(search, ranking);
  json["settings"] = to_document(search.settings());
  json["settings"]["baseline"] = search.baseline().id;
  json["settings"]["lists"] = {{"data", search.lists("data")}, {"test", search.lists("test")}};
  Json& space = json["space"] = Json::object();
  for (uint32_t role : roles_of(search.space()))
    for (int choice : search.space().allowed[sites_of(search.space(), role).first])
      space[role_name(role)].push_back(label(search, choice));
  json["buckets"] = bucket_names(search);
  json["std_bench"] = maybe(search.std_bench());
  json["homogeneous"] = Json::array();
  for (const Record* record : search.homogeneous()) {
    const auto quality = quality_of(*record, search.settings().metric, search.lists("data"));
    json["homogeneous"].push_back({{"id", record->id}, {"quality", quality ? Json(quality->value) : Json()}});
  }
  json["placements"] = Json::array();
  for (const Ranked& r : ranking) json["placements"].push_back(placement_json(search, r));
  json["refused"] = Json::array();
  for (const RefusedChoice& r : search.refused())
    json["refused"].push_back(
        {{"block", role_name(r.role)}, {"choice", label(search, r.choice)}, {"reason", r.reason}});
  return json;
}

}  // namespace attnkit::search
