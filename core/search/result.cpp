#include "core/search/result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace attnkit::core::search {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json maybe(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::string roles_text(const Space& space, const Placement& placement) {
  std::string out;
  for (uint32_t role : roles_of(space)) {
    const Unit unit = blocks_of(space, role);
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", role_name(role), space.choice(placement[unit.first]).label);
    for (size_t s = unit.first + 1; s < unit.last && !is_uniform(placement, unit); ++s)
      out += "-" + space.choice(placement[s]).label;
  }
  return out;
}

std::string baseline_name(const Space& space) {
  return is_uniform(space.baseline, {0, space.baseline.size()}) ? space.choice(space.baseline[0]).label
                                                                : "the baseline";
}

// "1/15 of" or "2.3 times".
std::string fraction_text(double ratio) {
  if (ratio > 0.95) return fmt::format("{:.1f} times", ratio);
  return 1 / ratio < 9.95 ? fmt::format("1/{:.1f} of", 1 / ratio) : fmt::format("1/{:.0f} of", 1 / ratio);
}

// The state of the blocks whose choice differs from the baseline's, against the baseline's state there.
std::string state_text(const AnswerInput& input) {
  const Placement& placement = input.winner.record->placement;
  uint64_t own = 0, theirs = 0;
  std::string roles;
  for (uint32_t role : roles_of(input.space)) {
    const uint64_t before = theirs;
    const Unit unit = blocks_of(input.space, role);
    for (size_t s = unit.first; s < unit.last; ++s) {
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

size_t size_of(Metric metric, const Outcomes& outcomes) {
  return metric == Metric::bleu ? outcomes.pairs.size() : outcomes.tokens.size();
}

// As value_of() has it.
double value_of(Metric metric, const Outcomes& outcomes, int64_t n) {
  const double score = score_of(metric, outcomes, static_cast<size_t>(n));
  return metric == Metric::perplexity ? std::exp(-score) : score;
}
double value_of(Metric metric, const Outcomes& outcomes) {
  return value_of(metric, outcomes, static_cast<int64_t>(size_of(metric, outcomes)));
}

Interval test_interval(Metric metric, const Outcomes& o) {
  if (metric == Metric::bleu) return bleu_interval(o.pairs, 1000, 1);
  QualitySums total;
  for (size_t i = 0; i < o.tokens.size(); ++i)
    total += sums_of_example(o.right[i] == o.tokens[i], o.tokens[i], o.right[i], static_cast<double>(o.nll[i]));
  return interval_of(metric, total);
}

std::string quality_text(const AnswerInput& input) {
  const Metric metric = input.settings.metric;
  const std::string name = baseline_name(input.space);
  const auto value = [&](const Ranked& r) { return input.test ? value_of(metric, r.record->test) : r.quality->value; };
  const char* const unit = metric == Metric::exact ? "exact match" : metric == Metric::bleu ? "BLEU" : "accuracy";
  if (!input.baseline.quality)  // it failed after the race
    return fmt::format(
        "has {} {:.3f}, and {} could not be measured to the end",
        metric == Metric::perplexity || metric == Metric::cosine ? metric_names[static_cast<size_t>(metric)] : unit,
        value(input.winner), name);
  const double own = value(input.winner), theirs = value(input.baseline);
  const std::string where =
      input.test ? " on the test set" : fmt::format(" on {} examples of dev", input.winner.quality->examples);
  if (metric == Metric::perplexity)
    return fmt::format("has perplexity {:.3f} against {:.3f} of {}{}", own, theirs, name, where);
  if (metric == Metric::cosine)
    return fmt::format("gives vectors of cosine {:.4f} to the model's own, {:.4f} with {}{}", own, theirs, name, where);
  if (theirs <= 0 && own > 0)
    return fmt::format("has {:.1f} {} against {:.1f} of {}{}", own, unit, theirs, name, where);
  return fmt::format("keeps {:.1f} % of {}'s {}{}", theirs > 0 ? 100 * own / theirs : 100, name, unit, where);
}

// Within the spread of the timings the two count as equally fast.
bool is_faster(const Record& record, int64_t length) {
  return cost_of(record, length, "decode_ratio_low").value_or(0) > 1;
}

// The first of the greatest lengths at which it is no longer faster; no value where it is faster at none or at the end.
std::optional<int64_t> overtaken(const Record& record) {
  std::optional<int64_t> found;
  bool was_faster = false;
  for (const auto& [length, cost] : record.costs) {
    if (!cost_of(record, length, "decode_ratio")) continue;
    const bool is = is_faster(record, length);
    if (is) found.reset();
    if (!is && was_faster && !found) found = length;
    was_faster |= is;
  }
  return found;
}

std::string crossover_text(const AnswerInput& input) {
  const Record& record = *input.winner.record;
  if (record.costs.size() < 2 || !cost_of(record, record.costs.begin()->first, "decode_ratio")) return "";
  const std::optional<int64_t> tokens = crossover(record);
  const std::string name = baseline_name(input.space);
  if (const std::optional<int64_t> lost = overtaken(record))
    return fmt::format("; from {} tokens on {} is at least as fast", *lost, name);
  if (!tokens) return fmt::format("; {} is as fast at every length measured", name);
  if (*tokens == 0)
    return fmt::format("; it is faster from {} tokens on, the fewest measured", record.costs.begin()->first);
  return fmt::format("; below {} tokens {} is as fast", *tokens, name);
}

// The reason for no winner.
std::string failure_text(const std::vector<Ranked>& ranking) {
  const auto is_limited = [](const Ranked& r) { return r.record->usable() && !r.limit.empty(); };
  if (std::ranges::any_of(ranking, is_limited)) return "No placement is within the limits.";
  const std::string text = "No placement could be measured to the end";
  for (const Ranked& r : ranking)
    if (!r.record->usable()) return fmt::format("{}; the first, {}: {}", text, r.record->id, r.record->reason);
  return text;
}

// Says what keeps the top group together: the kind that has more of the spread of its differences to the winner.
std::string tie_text(const Search& search) {
  if (search.top().size() < 2) return "";
  const Settings& settings = search.settings();
  const bool weighs =
      (settings.rank == Rank::rcp || settings.rank == Rank::rcp_mem) && settings.weights.weighs_quality();
  if (weighs && !(search.std_bench().value_or(0) > 0))
    return "std_bench is unknown or 0, so only quality could tell them apart";
  std::vector<Racer> racers;
  for (const Record* record : search.top()) racers.push_back(search.racer(*record));
  const double shared = block_variance(racers);
  const Comparison comparison = search.comparison(search.max_examples());
  std::vector<Standing> timed, exact;
  for (const Racer& racer : racers) {
    timed.push_back(comparison.standing(racer, shared));
    exact.push_back(timed.back());
    exact.back().log_speed_variance = 0;
  }
  double all = 0, examples = 0;
  for (size_t i = 1; i < racers.size(); ++i) {
    all += std::pow(comparison.advantage(timed[0], timed[i]).deviation, 2);
    examples += std::pow(comparison.advantage(exact[0], exact[i]).deviation, 2);
  }
  if (all > 2 * examples) return "timings vary too much on this machine";
  return fmt::format("{} examples are too few", search.max_examples());
}

Json answer_json(const Search& search, const std::vector<Ranked>& ranking) {
  const Record* winner = search.winner();
  Json answer = {{"placement", nullptr}, {"length", search.settings().length}, {"crossover", nullptr}};
  answer["text"] = winner ? "" : failure_text(ranking);
  if (!winner) return answer;
  const auto of = [&](const Record* r) -> const Ranked& { return *std::ranges::find(ranking, r, &Ranked::record); };
  const Metric metric = search.settings().metric;
  const auto is_tested = [&](const Record& r) { return size_of(metric, r.test) > 0; };
  const bool test = is_tested(*winner) && is_tested(search.baseline());
  answer["placement"] = winner->id;
  answer["tied"] = search.top().size();
  answer["crossover"] = maybe(crossover(*winner));
  answer["text"] = answer_text({search.space(), search.settings(), search.declared(), of(winner),
                                of(&search.baseline()), test, search.top().size(), tie_text(search),
                                search.examples("data"), search.opened().value("repeated", int64_t{0}),
                                search.opened().contains("training"), test && search.settings().test_is_data});
  return answer;
}

Json settings_json(const Search& search) {
  const Settings& s = search.settings();
  Json limits = Json::object();
  if (s.limits.min_quality_ratio) limits["min_quality_ratio"] = *s.limits.min_quality_ratio;
  if (s.limits.max_state) limits["max_state"] = *s.limits.max_state;
  if (s.limits.max_latency) limits["max_latency"] = *s.limits.max_latency;
  return {{"strategy", s.sampler.empty() ? strategy_names[static_cast<size_t>(s.strategy)] : "sampler"},
          {"sampler", s.sampler.empty() ? Json() : Json(s.sampler)},
          {"per_layer", s.per_layer},
          {"effort", effort_names[static_cast<size_t>(s.effort)]},
          {"confidence", s.confidence},
          {"metric", metric_names[static_cast<size_t>(s.metric)]},
          {"rank", rank_names[static_cast<size_t>(s.rank)]},
          {"length", s.length},
          {"lengths", s.lengths},
          {"limits", limits},
          {"exponents",
           {{"throughput", s.weights.throughput}, {"quality", s.weights.quality}, {"memory", s.weights.memory}}},
          {"quality_weight", s.weights.quality_weight},
          {"trials", s.trials},
          {"seed", s.seed},
          {"screen", s.screen},
          {"finalists", s.finalists},
          {"repetitions", s.repetitions},
          {"jobs", s.jobs},
          {"threads", s.threads},
          {"trial_timeout", s.trial_timeout},
          {"trial_memory", s.trial_memory},
          {"data", s.data},
          {"test", s.test},
          {"baseline", search.baseline().id},
          {"lists", {{"data", search.examples("data")}, {"test", search.examples("test")}}}};
}

Json value_json(double value, const Interval& interval) {
  return {{"value", value}, {"low", interval.low}, {"high", interval.high}};
}

// Differences of perplexity are those of its logarithm; as a document has them, of the perplexities themselves.
void add_difference(Json& json, Metric metric, const Difference& d, double baseline) {
  const auto value = [&](double score) {
    return metric == Metric::perplexity ? baseline * (std::exp(-score) - 1) : score;
  };
  json["baseline"] = baseline;
  json["difference"] = value(d.value);
  json["difference_low"] = std::min(value(d.interval.low), value(d.interval.high));
  json["difference_high"] = std::max(value(d.interval.low), value(d.interval.high));
  json["p"] = metric == Metric::exact ? Json(d.p) : Json();
}

Json quality_json(const Search& search, const Ranked& r) {
  if (!r.quality) return {};
  const Metric metric = search.settings().metric;
  Json json = value_json(r.quality->value, interval_of(*r.record, metric, r.quality->examples));
  json["lists"] = r.quality->examples;
  const auto n = static_cast<size_t>(r.quality->examples);
  if (r.baseline_quality)
    add_difference(json, metric,
                   difference(metric, r.record->outcomes, search.baseline().outcomes, n, search.is_top(*r.record)),
                   r.baseline_quality->value);
  if (metric == Metric::bleu) return json;
  QualitySums total;
  Json buckets = Json::array();
  for (const QualitySums& sums : r.record->sums(r.quality->examples)) {
    total += sums;
    buckets.push_back(sums.examples > 0 ? value_json(value_of(metric, sums), interval_of(metric, sums)) : Json());
    if (sums.examples > 0) buckets.back()["lists"] = sums.examples;
  }
  if (metric != Metric::cosine) {
    json["accuracy"] = value_of(Metric::accuracy, total);
    json["perplexity"] = value_of(Metric::perplexity, total);
  }
  json["buckets"] = std::move(buckets);
  return json;
}

Json cost_json(const Search& search, const Record& record) {
  if (record.costs.empty() && record.untimed.empty()) return {};
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

Json greedy_json(const nlohmann::json& answer) {
  QualitySums total;
  for (const auto& bucket : answer["sums"]) total += bucket.get<QualitySums>();
  const Interval interval = interval_of(Metric::exact, total);
  return {{"test",
           {{"exact", value_of(Metric::exact, total)},
            {"low", interval.low},
            {"high", interval.high},
            {"bleu", answer["bleu"]},
            {"bleu_low", answer["bleu_low"]},
            {"bleu_high", answer["bleu_high"]},
            {"lists", total.examples}}}};
}

Json test_json(const Search& search, const Record& record) {
  const Metric metric = search.settings().metric;
  const size_t n = size_of(metric, record.test);
  if (n == 0) return {};
  const Outcomes& other = search.baseline().test;
  Json json = value_json(value_of(metric, record.test), test_interval(metric, record.test));
  json["lists"] = n;
  if (size_of(metric, other) == n)
    add_difference(json, metric, difference(metric, record.test, other, n), value_of(metric, other));
  return json;
}

Json interval_json(const std::optional<Interval>& interval, bool high) {
  return interval ? Json(high ? interval->high : interval->low) : Json();
}

// The standings of all placements, each on the examples that it has, and what they say of one another.
class Standings {
 public:
  explicit Standings(const Search& search, const std::vector<Ranked>& ranking) : search_(search) {
    std::vector<Racer> racers;
    for (const Ranked& r : ranking) racers.push_back(search.racer(*r.record));
    shared_ = block_variance(racers);
    for (const Ranked& r : ranking) {
      if (!r.rank || !r.quality) continue;
      const std::optional<Interval> interval =
          value_interval(at(*r.record), *r.record, of(*r.record, r.quality->examples));
      intervals_[r.record] = interval;
      if (interval) lows_.push_back(interval->low), highs_.push_back(interval->high);
    }
    std::ranges::sort(lows_);
    std::ranges::sort(highs_);
  }

  // Members of a placement's JSON.
  void add(Json& json, const Ranked& r) const {
    const Record& record = *r.record;
    json["throughput"] = throughput_json(record, r);
    json["memory"] = memory_json(record, r);
    if (r.quality) {
      const Comparison all = at(record);
      for (const auto& [rank, name] : {std::pair(Rank::rcp, "rcp"), std::pair(Rank::rcp_mem, "rcp_mem")}) {
        const Comparison one = all.with(rank);
        const auto interval = value_interval(one, record, one.standing(search_.racer(record), shared_));
        json[std::string(name) + "_low"] = interval_json(interval, false);
        json[std::string(name) + "_high"] = interval_json(interval, true);
      }
    }
    json["rank_low"] = json["rank_high"] = nullptr;
    if (const auto own = intervals_.find(&record); own != intervals_.end() && own->second) {
      json["rank_low"] = 1 + (lows_.end() - std::ranges::upper_bound(lows_, own->second->high));
      json["rank_high"] =
          static_cast<int64_t>(lows_.size()) - (std::ranges::lower_bound(highs_, own->second->low) - highs_.begin());
    }
    json["to_winner"] = to_winner(record, r);
  }

 private:
  // The baseline is what others are compared with: its value is no estimate.
  std::optional<Interval> value_interval(const Comparison& comparison, const Record& record, const Standing& s) const {
    const bool is_unit = &record == &search_.baseline() && search_.settings().rank != Rank::quality;
    return is_unit && s.value ? std::optional(Interval{*s.value, *s.value}) : comparison.interval(s);
  }
  Comparison at(const Record& record) const {
    return search_.comparison(std::min(record.examples(), search_.baseline().examples()));
  }
  Standing of(const Record& record, int64_t examples) const {
    return search_.comparison(examples).standing(search_.racer(record), shared_);
  }

  Json throughput_json(const Record& record, const Ranked& r) const {
    if (!r.throughput) return {};
    const Racer racer = search_.racer(record);
    Json json = {{"value", *r.throughput}, {"low", nullptr}, {"high", nullptr}, {"blocks", racer.speeds.size()}};
    if (racer.speeds.empty() || !r.quality) return json;
    const Standing s = of(record, r.quality->examples);
    const double half = &record == &search_.baseline() ? 0 : kNormal95 * std::sqrt(s.log_speed_variance);
    json["low"] = *r.throughput * std::exp(-half);
    json["high"] = *r.throughput * std::exp(half);
    json["quartile_low"] = quantile(racer.speeds, 0.25);
    json["quartile_high"] = quantile(racer.speeds, 0.75);
    std::map<std::string, int> hosts;
    for (const nlohmann::json& block : record.blocks)
      if (block.contains("host")) ++hosts[block["host"]];
    for (const auto& [host, blocks] : hosts) json["hosts"][host] = blocks;
    return json;
  }

  Json memory_json(const Record& record, const Ranked& r) const {
    if (!r.memory) return {};
    const int64_t length = search_.settings().length;
    return {{"value", *r.memory},
            {"peak_bytes", maybe(cost_of(record, length, "peak_bytes"))},
            {"baseline_peak_bytes", maybe(cost_of(record, length, "baseline_peak_bytes"))}};
  }

  Json to_winner(const Record& record, const Ranked& r) const {
    const Record* winner = search_.winner();
    if (!winner || winner == &record || !r.quality) return {};
    const int64_t n = std::min(r.quality->examples, winner->examples());
    const Comparison comparison = search_.comparison(n);
    const Metric metric = search_.settings().metric;
    const Difference d = difference(metric, record.outcomes, winner->outcomes, static_cast<size_t>(n), false);
    const Standing own = of(record, n), best = of(*winner, n);
    const std::optional<Interval> ratio = comparison.ratio(own, best);
    Json json = {{"lists", n}};
    add_difference(json, metric, d, value_of(metric, winner->outcomes, n));
    json.erase("baseline");
    json["rank_ratio"] = own.value && best.value && *best.value != 0 ? Json(*own.value / *best.value) : Json();
    json["rank_ratio_low"] = interval_json(ratio, false);
    json["rank_ratio_high"] = interval_json(ratio, true);
    return json;
  }

  const Search& search_;
  double shared_ = 0;
  std::map<const Record*, std::optional<Interval>> intervals_;  // of the rank value
  std::vector<double> lows_, highs_;
};

Json held_out_json(const std::optional<HeldOut>& held_out) {
  return held_out ? Json{{"rmse", held_out->rmse}, {"tau", held_out->tau}, {"n", held_out->n}} : Json();
}

// Of strategies that guess, how well.
Json surrogate_json(const Seen& seen) {
  if (!seen.quality) return {};
  return {{"quality", held_out_json(seen.quality)},
          {"throughput", held_out_json(seen.throughput)},
          {"memory", held_out_json(seen.memory)}};
}

Json race_json(const Search& search) {
  Json json = {{"stages", Json::array()}, {"decided", search.top().size() == 1}};
  for (const RaceStage& s : search.stages())
    json["stages"].push_back({{"examples", s.examples}, {"blocks", s.blocks}, {"raced", s.raced}, {"kept", s.kept}});
  return json;
}

Json noise_json(const Noise& noise) {
  Json json = {{"ratio_low", nullptr},
               {"ratio_high", nullptr},
               {"repetitions", noise.ratios.size()},
               {"drift", nullptr},
               {"load", noise.load < 0 ? Json() : Json(noise.load)}};
  if (noise.ratios.size() > 1) {
    std::vector<double> logs;
    for (const double ratio : noise.ratios) logs.push_back(std::log(ratio));
    const double half = kNormal95 * sample_deviation(logs), centre = median(logs);
    json["ratio_low"] = std::exp(centre - half);
    json["ratio_high"] = std::exp(centre + half);
  }
  double drift = 0;
  std::map<std::string, double> first;  // of a host: another one may be faster, which is no drift
  for (const auto& [at, speed] : noise.speeds)
    drift = std::max(drift, std::abs(speed / first.emplace(at.second, speed).first->second - 1));
  if (!noise.speeds.empty()) json["drift"] = drift;
  return json;
}

Json blocks_json(const Space& space, const Placement& placement) {
  Json blocks = Json::object();
  for (size_t s = 0; s < placement.size(); ++s)
    blocks[role_name(space.blocks[s].role)].push_back(space.choice(placement[s]).label);
  return blocks;
}

Json placement_json(const Search& search, const Standings& standings, const Ranked& r) {
  const Record& record = *r.record;
  const std::string reason = record.usable() ? r.limit : record.reason;
  const char* status = record.status == Record::Status::refused  ? "refused"
                       : record.status == Record::Status::failed ? "failed"
                       : r.limit.empty()                         ? "ranked"
                                                                 : "limited";
  Json json = {{"id", record.id},
               {"blocks", blocks_json(search.space(), record.placement)},
               {"status", status},
               {"reason", reason.empty() ? Json() : Json(reason)},
               {"rank", maybe(r.rank)},
               {"pareto", r.pareto},
               {"baseline", &record == &search.baseline()},
               {"finalist", search.is_finalist(record)},
               {"top", search.is_top(record)},
               {"screened", record.usable() && record.examples() < search.examples("data")},
               {"quality", quality_json(search, r)},
               {"cost", cost_json(search, record)},
               {"rcp", maybe(r.rcp)},
               {"rcp_mem", maybe(r.rcp_mem)}};
  standings.add(json, r);
  json["test"] = test_json(search, record);
  if (!record.greedy.is_null()) json["greedy"] = greedy_json(record.greedy);
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

// Says why the intervals are narrower than they should be.
std::string caution(const AnswerInput& input) {
  // Below some 100 examples the normal distribution that intervals rest on is a poor likeness.
  if (input.lines > 0 && input.lines < 100)
    return fmt::format(" Only {} examples decide, a handful: take more before you rely on it.", input.lines);
  if (input.repeated * 100 > input.lines)
    return fmt::format(
        " {} of the {} examples repeat others word for word, so intervals are narrower than they should be.",
        input.repeated, input.lines);
  return "";
}

}  // namespace

std::optional<int64_t> crossover(const Record& record) {
  std::optional<int64_t> found, before;
  for (const auto& [length, cost] : record.costs) {
    if (!cost_of(record, length, "decode_ratio")) continue;
    if (!is_faster(record, length)) {
      found.reset();
    } else if (!found && !before) {
      found = 0;
    } else if (!found) {
      const double a = *cost_of(record, *before, "decode_ratio") - 1, b = *cost_of(record, length, "decode_ratio") - 1;
      const double share = b > a ? std::clamp(-a / (b - a), 0.0, 1.0) : 0;
      found = *before + static_cast<int64_t>(std::lround(share * static_cast<double>(length - *before)));
    }
    before = length;
  }
  return found;
}

std::string answer_text(const AnswerInput& input) {
  const Placement& placement = input.winner.record->placement;
  const std::string what =
      fmt::format("{}{} tokens, {}", input.settings.effort == Effort::quick ? "By a screening alone: at " : "At ",
                  input.settings.length, roles_text(input.space, placement));
  std::string tied = input.tied < 2 ? ""
                                    : fmt::format(" {} {} not told apart from it{}{}.", input.tied - 1,
                                                  input.tied == 2 ? "other is" : "others are",
                                                  input.why.empty() ? "" : ": ", input.why);
  tied += caution(input);
  if (input.test && input.is_chosen_by_test)
    tied += " The test set is the data of the race, so it is no check of the choice.";
  if (input.trained) tied += " Each placement was trained by itself before it was judged.";
  if (placement == input.space.baseline) return what + ": nothing that was tried ranks above the baseline." + tied;
  const bool decodes = cost_of(*input.winner.record, input.settings.length, "decode_ratio").has_value();
  return fmt::format("{} {} at {:.2f}x its {} throughput{}{}.{}", what, quality_text(input),
                     input.winner.throughput.value_or(1), decodes ? "decode" : "prefill", state_text(input),
                     crossover_text(input), tied);
}

Json result_document(const Search& search) {
  const Space& space = search.space();
  const std::vector<Ranked> ranking = search.ranking();
  Json json = {{"schema", "attnkit.search/1"}, {"status", "done"}};
  json["answer"] = answer_json(search, ranking);
  json["settings"] = settings_json(search);
  for (uint32_t role : roles_of(space))
    for (int choice : space.allowed[blocks_of(space, role).first])
      json["space"][role_name(role)].push_back(space.choice(choice).label);
  json["buckets"] = bucket_names(search);
  json["std_bench"] = maybe(search.std_bench());
  for (const char* key : {"homogeneous", "placements", "refused"}) json[key] = Json::array();
  for (const Record* record : search.homogeneous()) {
    const auto quality = quality_of(*record, search.settings().metric, search.max_examples());
    json["homogeneous"].push_back({{"id", record->id}, {"quality", quality ? Json(quality->value) : Json()}});
  }
  json["training"] = search.opened().value("training", Json());
  json["space_size"] = search.seen().space_size;
  json["proposed"] = search.seen().proposed;
  json["surrogate"] = surrogate_json(search.seen());
  json["race"] = race_json(search);
  json["noise"] = noise_json(search.noise());
  json["top_group"] = Json::array();
  for (const Record* record : search.top()) json["top_group"].push_back(record->id);
  const Standings standings(search, ranking);
  for (const Ranked& r : ranking) json["placements"].push_back(placement_json(search, standings, r));
  for (const RefusedChoice& r : search.refused())
    json["refused"].push_back(
        {{"block", role_name(r.role)}, {"choice", space.choice(r.choice).label}, {"reason", r.reason}});
  return json;
}

}  // namespace attnkit::core::search
