#include "hosts/cli/search/setup.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <thread>

#include "core/search/worker/process_memory.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

using nlohmann::json;

// Of the description's "search"; null where the manifest has no such key.
json setting(const json& description, const char* key) {
  const json search = description.value("search", json());
  return search.is_object() && search.contains(key) ? search[key] : json();
}

double to_number(const std::string& option, const std::string& text, double min, double max) {
  const auto x = parse_number<double>(text);
  if (!x || !(*x >= min && *x <= max))
    fail(Exit::usage, "--{} {} must be a number from {} to {}", option, quote(text), min, max);
  return *x;
}

// A number with one of the units, as its multiple.
double with_unit(const std::string& option, const std::string& text,
                 const std::vector<std::pair<std::string, double>>& units) {
  std::string names;
  for (const auto& [unit, factor] : units) {
    names += (names.empty() ? "" : ", ") + unit;
    double x = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
    if (error == std::errc() && std::string(end, text.data() + text.size()) == unit && x > 0 && x * factor < 1e18)
      return x * factor;
  }
  fail(Exit::usage, "--{} {} must be a number above 0 with one of the units {}", option, quote(text), names);
}

uint64_t bytes_of(const Arguments& arguments, const std::string& option) {
  return static_cast<uint64_t>(
      with_unit(option, arguments.text(option),
                {{"B", 1}, {"KiB", 1024}, {"MiB", 1024.0 * 1024}, {"GiB", 1024.0 * 1024 * 1024}}));
}

search::Limits limits_of(const Arguments& arguments, const json& description) {
  search::Limits limits;
  const json own = setting(description, "limits");
  const auto number = [&](const char* key) -> std::optional<double> {
    return own.is_object() && own.contains(key) && own[key].is_number() ? std::optional(own[key].get<double>())
                                                                        : std::nullopt;
  };
  limits.min_quality_ratio = number("min_quality_ratio");
  if (const auto bytes = number("max_state")) limits.max_state = static_cast<uint64_t>(*bytes);
  limits.max_latency = number("max_latency");
  if (arguments.has("min-quality-ratio"))
    limits.min_quality_ratio = to_number("min-quality-ratio", arguments.text("min-quality-ratio"), 0, 10);
  if (arguments.has("max-state")) limits.max_state = bytes_of(arguments, "max-state");
  if (arguments.has("max-latency"))
    limits.max_latency =
        with_unit("max-latency", arguments.text("max-latency"), {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}});
  return limits;
}

size_t chosen(const Arguments& arguments, const json& description, const char* key,
              const std::vector<std::string>& names, const std::string& fallback) {
  const json own = setting(description, key);
  const std::string name = own.is_string() ? own.get<std::string>() : fallback;
  const auto at = std::find(names.begin(), names.end(), name) - names.begin();
  return arguments.choice(key, static_cast<size_t>(at), names);
}

std::string usual_metric(const json& description) {
  if (description["head"]["type"] == "classifier") return "accuracy";
  return description["kind"] == "encoder-decoder" ? "exact" : "perplexity";
}

search::RcpSettings weights_of(const json& description) {
  search::RcpSettings weights;
  const json own = setting(description, "exponents");
  if (own.is_object()) {
    weights.throughput = own.value("throughput", weights.throughput);
    weights.quality = own.value("quality", weights.quality);
    weights.memory = own.value("memory", weights.memory);
  }
  const json weight = setting(description, "quality_weight");
  if (weight.is_number()) weights.quality_weight = weight;
  return weights;
}

// The command line's is meant from the working directory, the manifest's is absolute already.
std::string data_path(const Arguments& arguments, const json& description, const char* key) {
  if (arguments.has(key)) return std::filesystem::absolute(arguments.text(key)).lexically_normal().string();
  const json own = setting(description, key);
  return own.is_string() ? own.get<std::string>() : "";
}

}  // namespace

Arguments::Options search_options() {
  Arguments::Options o;
  o.add_options()("output,o", value("DIR"),
                  "folder of the journal, result, report and winning manifest (default search)");
  o.add_options()("resume", "go on with the journal in that folder");
  o.add_options()("strategy", value("ablation|grid|pareto"), "what is tried (default grid)");
  o.add_options()("per-layer", "layers of a role may differ (ablation, pareto)");
  o.add_options()("space", values("ROLE=NAME,..."), "mechanisms that may sit in a role, or ROLE=all; may be repeated");
  o.add_options()("baseline", value("NAME"), "mechanism in every block of what all is compared with");
  o.add_options()("data", value("FILE"), "examples that the search measures quality on: input, tab, reference");
  o.add_options()("test", value("FILE"), "examples that only the finalists are reported on");
  o.add_options()("metric", value("exact|bleu|accuracy|perplexity"), "what quality is");
  o.add_options()("rank", value("rcp|rcp_mem|quality|throughput"), "what decides (default rcp_mem)");
  o.add_options()("length", value("N"), "tokens at which throughput and memory are ranked (default 512)");
  o.add_options()("lengths", value("N,N,..."), "tokens at which finalists are timed (default 64,512,4096)");
  o.add_options()("min-quality-ratio", value("X"), "least quality, as a share of the baseline's");
  o.add_options()("max-state", value("SIZE"), "most state of a session of --length tokens, such as 64KiB");
  o.add_options()("max-latency", value("TIME"), "longest time of a token, such as 500us");
  o.add_options()("trials", value("N"), "most placements that strategy pareto tries (default 64)");
  o.add_options()("seed", value("N"), "of strategy pareto (default 1)");
  o.add_options()("screen", value("N"), "examples that every placement is measured on (default 500)");
  o.add_options()("finalists", value("N"), "placements that are timed at every length and decoded (default 3)");
  o.add_options()("repetitions", value("N"), "of a timing, of which the median counts (default 5)");
  o.add_options()("jobs", value("N"), "worker processes; timings run alone (default one per processor)");
  o.add_options()("trial-timeout", value("SECONDS"), "longest trial before its worker is killed (default 120)");
  o.add_options()("trial-memory", value("SIZE"),
                  "most memory of a worker, such as 8GiB (default half of the machine's)");
  o.add_options()("rows", value("N"), "placements that the table shows (default 12)");
  return o;
}

uint64_t trial_memory(const Arguments& arguments) {
  if (arguments.has("trial-memory")) return bytes_of(arguments, "trial-memory");
  return search::machine_memory().value_or(0) / 2;
}

search::Settings search_settings(const Arguments& arguments, const json& description) {
  search::Settings s;
  s.strategy =
      static_cast<search::StrategyKind>(chosen(arguments, description, "strategy", search::strategy_names, "grid"));
  const json per_layer = setting(description, "per_layer");
  s.per_layer = arguments.has("per-layer") || (per_layer.is_boolean() && per_layer.get<bool>());
  s.metric = static_cast<search::Metric>(
      chosen(arguments, description, "metric", search::metric_names, usual_metric(description)));
  s.rank = static_cast<search::Rank>(chosen(arguments, description, "rank", search::rank_names, "rcp_mem"));
  const auto integer = [&](const char* key, int64_t fallback, int64_t low, int64_t high) {
    const json own = setting(description, key);
    return arguments.integer(key, own.is_number_integer() ? own.get<int64_t>() : fallback, low, high);
  };
  s.length = integer("length", s.length, 1, int64_t{1} << 20);
  const json lengths = setting(description, "lengths");
  s.lengths = arguments.integers("lengths", lengths.is_array() ? lengths.get<std::vector<int64_t>>() : s.lengths, 1,
                                 int64_t{1} << 20);
  s.lengths.push_back(s.length);
  std::sort(s.lengths.begin(), s.lengths.end());
  s.lengths.erase(std::unique(s.lengths.begin(), s.lengths.end()), s.lengths.end());
  s.limits = limits_of(arguments, description);
  s.weights = weights_of(description);
  s.trials = static_cast<int>(integer("trials", s.trials, 1, 1000000));
  s.seed = static_cast<uint64_t>(integer("seed", 1, 0, UINT32_MAX));
  s.screen = arguments.integer("screen", s.screen, 1, INT32_MAX);
  s.finalists = static_cast<int>(arguments.integer("finalists", s.finalists, 1, 1000));
  s.repetitions = static_cast<int>(arguments.integer("repetitions", s.repetitions, 1, 1000));
  const auto processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  s.jobs = static_cast<int>(arguments.integer("jobs", processors, 1, 256));
  s.threads = static_cast<int>(arguments.integer("threads", 1, 1, 1024));
  s.trial_timeout = to_number("trial-timeout", arguments.text("trial-timeout", "120"), 0.1, 1e6);
  s.trial_memory = trial_memory(arguments);
  s.data = data_path(arguments, description, "data");
  s.test = data_path(arguments, description, "test");
  if (s.data.empty())
    throw Failure(Exit::usage, "a search needs a data set: none is given",
                  "--data FILE, or data = \"FILE\" in the manifest's [search]");
  return s;
}

search::SpaceRequest search_space(const Arguments& arguments, const json& description,
                                  const std::vector<std::string>& mechanisms) {
  search::SpaceRequest request;
  request.description = description;
  request.mechanisms = mechanisms;
  if (arguments.has("baseline")) request.baseline = arguments.text("baseline");
  for (const std::string& text : arguments.texts("space")) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      fail(Exit::usage, "--space {} must be ROLE=NAME,NAME,... or ROLE=all", quote(text));
    const std::string role = text.substr(0, equals), list = text.substr(equals + 1);
    std::vector<std::string>& names = request.roles[role];
    if (!names.empty()) fail(Exit::usage, "--space: {} is given twice", role);
    names = list == "all" ? mechanisms : split(list, ',');
  }
  return request;
}

}  // namespace attnkit::cli
