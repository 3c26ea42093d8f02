#include "hosts/cli/search/view.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

const Json& member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto at = object.find(key);
  return at == object.end() ? null : *at;
}

std::optional<double> number_in(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (!value.is_number()) return std::nullopt;
  constexpr double most = 1e100;  // beyond, differences and ratios would overflow
  const double number = value.get<double>();
  return std::abs(number) <= most ? std::optional(number) : std::nullopt;
}

std::string text_in(const Json& object, const char* key) {
  const Json& value = member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

int64_t integer_in(const Json& object, const char* key) {
  constexpr double most = 1e15;
  const double number = number_in(object, key).value_or(0);
  return static_cast<int64_t>(std::clamp(number, -most, most));
}

const Json& list_in(const Json& object, const char* key) {
  static const Json empty = Json::array();
  const Json& value = member(object, key);
  return value.is_array() ? value : empty;
}

namespace {

bool flag_in(const Json& object, const char* key) {
  const Json& value = member(object, key);
  return value.is_boolean() && value.get<bool>();
}

std::vector<std::string> texts_of(const Json& list) {
  std::vector<std::string> texts;
  if (list.is_array())
    for (const Json& entry : list) texts.push_back(entry.is_string() ? entry.get<std::string>() : "?");
  return texts;
}

// `key`, `key`_low and `key`_high.
Estimate estimate_in(const Json& json, const std::string& key) {
  return {number_in(json, key.c_str()), number_in(json, (key + "_low").c_str()),
          number_in(json, (key + "_high").c_str())};
}

Measure measure_of(const Json& json) {
  return {{number_in(json, "value"), number_in(json, "low"), number_in(json, "high")},
          estimate_in(json, "difference"),
          std::max<int64_t>(0, integer_in(json, "lists"))};
}

// Of documents before there was "test": greedy decoding of the test set.
Measure tested(const Json& json, const SearchView& view) {
  if (json.contains("test")) return measure_of(member(json, "test"));
  const Json& greedy = member(member(json, "greedy"), "test");
  Measure m;
  m.lists = std::max<int64_t>(0, integer_in(greedy, "lists"));
  if (view.metric == "exact") m.own = {number_in(greedy, "exact"), number_in(greedy, "low"), number_in(greedy, "high")};
  if (view.metric == "bleu") m.own = estimate_in(greedy, "bleu");
  return m;
}

// A zero of these says that nothing was measured.
std::optional<double> positive_in(const Json& object, const char* key) {
  const std::optional<double> value = number_in(object, key);
  return value && *value > 0 ? value : std::nullopt;
}

Cost cost_of(const Json& json, bool decodes) {
  Cost cost;
  cost.length = integer_in(json, "length");
  cost.speed = positive_in(json, decodes ? "decode" : "prefill");
  cost.ratio = positive_in(json, decodes ? "decode_ratio" : "prefill_ratio");
  cost.ratio_low = positive_in(json, decodes ? "decode_ratio_low" : "prefill_ratio_low");
  cost.ratio_high = positive_in(json, decodes ? "decode_ratio_high" : "prefill_ratio_high");
  cost.latency = positive_in(json, "latency");
  cost.peak_bytes = positive_in(json, "peak_bytes");
  cost.baseline_peak_bytes = positive_in(json, "baseline_peak_bytes");
  cost.state_bytes = positive_in(json, "state_bytes");
  return cost;
}

void read_costs(const Json& json, const SearchView& view, Trial& trial) {
  for (const Json& at : list_in(member(json, "cost"), "at")) trial.costs.push_back(cost_of(at, view.decodes));
  std::ranges::sort(trial.costs, {}, &Cost::length);
  for (const Json& at : list_in(member(json, "cost"), "untimed"))
    trial.untimed.emplace_back(integer_in(at, "length"), text_in(at, "reason"));
  for (const Cost& cost : trial.costs)
    if (cost.length == view.length) trial.cost = cost;
}

// Documents before there was "throughput" have ratios without intervals.
void read_ratios(const Json& json, Trial& trial) {
  const Json &speed = member(json, "throughput"), &memory = member(json, "memory");
  trial.throughput = {positive_in(speed, "value"), positive_in(speed, "low"), positive_in(speed, "high")};
  if (!speed.is_object()) trial.throughput.value = trial.cost.ratio;
  trial.memory = positive_in(memory, "value");
  trial.peak_bytes = positive_in(memory, "peak_bytes");
  if (memory.is_object()) return;
  trial.peak_bytes = trial.cost.peak_bytes;
  if (trial.peak_bytes && trial.cost.baseline_peak_bytes)
    trial.memory = *trial.peak_bytes / *trial.cost.baseline_peak_bytes;
}

Trial trial_of(const Json& json, const SearchView& view) {
  Trial trial;
  trial.id = text_in(json, "id");
  trial.status = text_in(json, "status");
  trial.reason = text_in(json, "reason");
  if (const Json& blocks = member(json, "blocks"); blocks.is_object())
    for (const auto& [role, layers] : blocks.items()) trial.blocks.emplace_back(role, texts_of(layers));
  trial.rank = std::max<int64_t>(0, integer_in(json, "rank"));
  trial.rank_low = std::max<int64_t>(0, integer_in(json, "rank_low"));
  trial.rank_high = std::max<int64_t>(0, integer_in(json, "rank_high"));
  trial.pareto = flag_in(json, "pareto");
  trial.baseline = flag_in(json, "baseline");
  trial.top = flag_in(json, "top");
  const Json& quality = member(json, "quality");
  trial.quality = measure_of(quality);
  for (const Json& bucket : list_in(quality, "buckets")) trial.buckets.push_back(measure_of(bucket));
  trial.test = tested(json, view);
  read_costs(json, view, trial);
  read_ratios(json, trial);
  trial.rcp = estimate_in(json, "rcp");
  trial.rcp_mem = estimate_in(json, "rcp_mem");
  trial.rank_ratio = estimate_in(member(json, "to_winner"), "rank_ratio");
  return trial;
}

bool any_decodes(const Json& placements) {
  for (const Json& placement : placements)
    for (const Json& at : list_in(member(placement, "cost"), "at"))
      if (positive_in(at, "decode") || positive_in(at, "decode_ratio")) return true;
  return false;
}

void add_once(std::vector<std::string>& list, const std::string& entry) {
  if (std::ranges::count(list, entry) == 0) list.push_back(entry);
}

// The space as the document gives it, then whatever the placements hold besides.
void read_space(const Json& result, SearchView& view) {
  if (const Json& space = member(result, "space"); space.is_object())
    for (const auto& [role, choices] : space.items()) {
      add_once(view.roles, role);
      for (const std::string& choice : texts_of(choices)) add_once(view.choices, choice);
    }
  for (const Trial& trial : view.trials)
    for (const auto& [role, layers] : trial.blocks) {
      add_once(view.roles, role);
      for (const std::string& choice : layers) add_once(view.choices, choice);
    }
}

// Documents before there was "screened" say it by the number of examples.  Where a race was decided early nobody has
// all of them, and the survivors can be compared with one another.
void mark_screened(const Json& placements, SearchView& view) {
  int64_t most = 0;
  for (const Trial& trial : view.trials) most = std::max(most, trial.quality.lists);
  for (size_t i = 0; i < view.trials.size(); ++i) {
    Trial& trial = view.trials[i];
    const Json& flag = member(placements[i], "screened");
    const bool is_short = trial.quality.own.value && trial.quality.lists < most;
    trial.screened = (is_short || view.is_screening()) && (!flag.is_boolean() || flag.get<bool>());
    trial.comparable = trial.quality.own.value && !trial.screened && !is_short;
  }
}

void mark(const Json& result, SearchView& view) {
  const std::string baseline = text_in(member(result, "settings"), "baseline"),
                    winner = text_in(member(result, "answer"), "placement");
  const bool is_said = !winner.empty() || member(result, "answer").contains("placement");
  std::vector<std::string> homogeneous;
  for (const Json& h : list_in(result, "homogeneous")) homogeneous.push_back(text_in(h, "id"));
  for (Trial& trial : view.trials) {
    trial.baseline |= !baseline.empty() && trial.id == baseline;
    trial.winner = is_said ? trial.id == winner : trial.rank == 1;
    trial.homogeneous = std::ranges::count(homogeneous, trial.id) > 0;
  }
}

}  // namespace

SearchView view_of(const Json& result) {
  SearchView view;
  const Json &model = member(result, "model"), &settings = member(result, "settings");
  view.model = text_in(model, "name").empty() ? "model without a name" : text_in(model, "name");
  view.kind = text_in(model, "kind");
  view.classifier = text_in(member(model, "head"), "type") == "classifier";
  view.answer = text_in(member(result, "answer"), "text");
  view.metric = text_in(settings, "metric").empty() ? "quality" : text_in(settings, "metric");
  view.strategy = text_in(settings, "strategy");
  view.rank = text_in(settings, "rank");
  view.effort = text_in(settings, "effort");
  view.confidence = std::clamp(number_in(settings, "confidence").value_or(0.95), 0.0, 1.0);
  view.lower_is_better = view.metric == "perplexity";
  view.per_layer = flag_in(settings, "per_layer");
  view.length = integer_in(settings, "length");
  if (view.length == 0) view.length = integer_in(member(result, "answer"), "length");
  view.buckets = texts_of(member(result, "buckets"));
  view.std_bench = number_in(result, "std_bench");
  view.weighs_quality = number_in(member(settings, "exponents"), "quality").value_or(1) != 0 &&
                        number_in(settings, "quality_weight").value_or(1) != 0;
  const std::string test = text_in(member(result, "model"), "test_sha256");
  view.chosen_by_test = !test.empty() && test == text_in(member(result, "model"), "data_sha256");
  const Json& placements = list_in(result, "placements");
  view.decodes = any_decodes(placements);
  for (const Json& placement : placements) view.trials.push_back(trial_of(placement, view));
  mark_screened(placements, view);
  const auto key = [](const Trial& t) { return t.rank > 0 ? t.rank : std::numeric_limits<int64_t>::max(); };
  std::ranges::stable_sort(view.trials, {}, key);
  for (const Json& refused : list_in(result, "refused"))
    view.refusals.push_back({text_in(refused, "block"), text_in(refused, "choice"), text_in(refused, "reason")});
  for (const Json& stage : list_in(member(result, "race"), "stages"))
    view.stages.push_back({integer_in(stage, "examples"), integer_in(stage, "blocks"), integer_in(stage, "raced"),
                           integer_in(stage, "kept")});
  view.decided = flag_in(member(result, "race"), "decided");
  mark(result, view);
  read_space(result, view);
  return view;
}

const std::vector<std::string>* Trial::layers(const std::string& role) const {
  for (const auto& [name, layers] : blocks)
    if (name == role) return &layers;
  return nullptr;
}

const Trial* SearchView::first(bool Trial::*flag) const {
  const auto at = std::ranges::find(trials, true, flag);
  return at == trials.end() ? nullptr : &*at;
}

std::vector<const Trial*> SearchView::named() const {
  std::vector<const Trial*> all;
  for (bool Trial::*flag : {&Trial::baseline, &Trial::winner})
    if (const Trial* t = first(flag); t && std::ranges::count(all, t) == 0) all.push_back(t);
  for (const Trial& t : trials)
    if (t.homogeneous && std::ranges::count(all, &t) == 0) all.push_back(&t);
  return all;
}

std::vector<const Trial*> SearchView::tied() const {
  std::vector<const Trial*> all;
  for (const Trial& t : trials)
    if (t.tied()) all.push_back(&t);
  return all;
}

size_t SearchView::count(const std::string& status) const {
  return static_cast<size_t>(std::ranges::count(trials, status, &Trial::status));
}

std::string layers_text(const std::vector<std::string>& layers) {
  if (layers.empty()) return "";
  const auto alike = static_cast<size_t>(std::ranges::count(layers, layers.front()));
  return alike == layers.size() ? layers.front() : joined(layers, " / ");
}

std::string short_name(const Trial& trial) {
  std::vector<std::string> names;
  for (const auto& [role, layers] : trial.blocks) names.push_back(layers_text(layers));
  if (names.empty()) return trial.id;
  const auto alike = static_cast<size_t>(std::ranges::count(names, names.front()));
  return alike == names.size() ? names.front() : joined(names, ", ");
}

std::string fixed_text(std::optional<double> value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "n/a";
}

int quality_digits(const SearchView& view) { return view.lower_is_better || view.metric == "cosine" ? 5 : 2; }

std::string quality_text(const SearchView& view, std::optional<double> value) {
  return fixed_text(value, quality_digits(view));
}

const char* quality_unit(const SearchView& view) {
  return view.metric == "exact" || view.metric == "accuracy" ? " %" : "";
}

std::string metric_name(const SearchView& view) {
  if (view.metric == "exact") return "exact match";
  if (view.metric == "accuracy") return view.classifier ? "accuracy" : "token accuracy";
  return view.metric == "bleu" ? "BLEU" : view.metric;
}

std::string metric_title(const SearchView& view) {
  return metric_name(view) + (*quality_unit(view) ? "," : "") + quality_unit(view);
}

std::string signed_text(double value, int digits) {
  const std::string text = fmt::format("{:.{}f}", std::abs(value), digits);
  if (text.find_first_of("123456789") == std::string::npos) return text;
  return (value < 0 ? "\u2212" : "+") + text;
}

std::string difference_text(const SearchView& view, std::optional<double> difference) {
  return difference ? signed_text(*difference, quality_digits(view)) : "n/a";
}

std::string percent_text(double share) { return fmt::format("{:.4g} %", 100 * share); }

std::string rank_name(const SearchView& view) {
  if (view.rank == "rcp_mem") return "RCP_mem";
  return view.rank == "quality" ? metric_name(view) : view.rank == "throughput" ? "throughput" : "RCP";
}

const Estimate& rank_value(const SearchView& view, const Trial& trial) {
  if (view.rank == "rcp_mem") return trial.rcp_mem;
  return view.rank == "quality" ? trial.quality.own : view.rank == "throughput" ? trial.throughput : trial.rcp;
}

std::string memory_text(std::optional<double> bytes) {
  return bytes ? bytes_text(static_cast<uint64_t>(std::clamp(*bytes, 0.0, 1e18))) : "n/a";
}

std::string latency_text(std::optional<double> seconds) { return seconds ? seconds_text(*seconds) : "n/a"; }

}  // namespace attnkit::cli
