#include "hosts/cli/search/setup.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "core/base/processors.hpp"
#include "core/search/worker/process_memory.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/io/audio.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

using nlohmann::json;

// The manifest's [search] with what it says; empty where there is none.
json own_settings(const json& description) {
  json own = json::object();
  own.merge_patch(description.value("search", json()));  // which leaves out what is null
  return own.is_object() ? own : json::object();
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

search::Limits limits_of(const Arguments& arguments, const json& own) {
  search::Limits limits;
  if (own.contains("min_quality_ratio")) limits.min_quality_ratio = own["min_quality_ratio"].get<double>();
  if (own.contains("max_state")) limits.max_state = own["max_state"].get<uint64_t>();
  if (own.contains("max_latency")) limits.max_latency = own["max_latency"].get<double>();
  if (arguments.has("min-quality-ratio")) limits.min_quality_ratio = arguments.number("min-quality-ratio", 0, 0, 10);
  if (arguments.has("max-state")) limits.max_state = bytes_of(arguments, "max-state");
  if (arguments.has("max-latency"))
    limits.max_latency =
        with_unit("max-latency", arguments.text("max-latency"), {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}});
  return limits;
}

size_t chosen(const Arguments& arguments, const json& own, const char* key, const std::vector<std::string>& names,
              const std::string& fallback) {
  const auto at = std::ranges::find(names, own.value(key, fallback)) - names.begin();
  return arguments.choice(key, static_cast<size_t>(at), names);
}

search::RcpSettings weights_of(const json& own) {
  search::RcpSettings weights;
  const json exponents = own.value("exponents", json::object());
  weights.throughput = exponents.value("throughput", weights.throughput);
  weights.quality = exponents.value("quality", weights.quality);
  weights.memory = exponents.value("memory", weights.memory);
  weights.quality_weight = own.value("quality_weight", weights.quality_weight);
  return weights;
}

// The command line's is meant from the working directory, the manifest's is absolute already.
std::string data_path(const Arguments& arguments, const json& own, const char* key) {
  if (arguments.has(key)) return std::filesystem::absolute(arguments.text(key)).lexically_normal().string();
  std::string path = own.value(key, "");
  if (!path.empty() && !std::filesystem::exists(path))
    fail(Exit::data, "{}, which [search] {} names, is not there: --{} FILE names another", path, key, key);
  return path;
}

}  // namespace

const Options search_options = {
    {"output,o", "DIR", "folder of the journal, result, report and winning manifest (default search)"},
    {"resume", nullptr, "go on with the journal in that folder"},
    {"bundle", "DIR", "a new folder with the winner and all it needs, to copy and run elsewhere"},
    {"strategy", "ablation|grid|pareto", "what is tried (default grid)"},
    {"sampler", "COMMAND", "a program that proposes what is tried, such as \"python3 -m attnkit.optuna\""},
    {"per-layer", nullptr, "layers of a role may differ (ablation, pareto, --sampler)"},
    {"space", "ROLE=NAME,...", "mechanisms that may sit in a role, or ROLE=all; may be repeated", true},
    {"baseline", "NAME", "mechanism in every block of what all is compared with"},
    {"data", "FILE", "examples that the search measures quality on: input or recording, tab, reference"},
    {"test", "FILE", "examples that only the top group is reported on"},
    {"metric", "exact|bleu|accuracy|perplexity|cosine", "what quality is"},
    {"rank", "rcp|rcp_mem|quality|throughput", "what decides (default rcp_mem)"},
    {"length", "N", "tokens at which throughput and memory are ranked (default 512)"},
    {"lengths", "N,N,...", "tokens at which finalists are timed (default 64,512,4096)"},
    {"min-quality-ratio", "X", "least quality, as a share of the baseline's"},
    {"max-state", "SIZE", "most state of a session of --length tokens, such as 64KiB"},
    {"max-latency", "TIME", "longest time of a token, such as 500us"},
    {"trials", "N", "most placements that strategy pareto or --sampler tries (default 64)"},
    {"seed", "N", "of strategy pareto and --sampler (default 1)"},
    {"quick", nullptr, "no more than the screening, and says so"},
    {"thorough", nullptr, "all examples and timings for every placement"},
    {"confidence", "X", "that the best placement is in the top group (default 0.95)"},
    {"screen", "N", "examples that every placement is measured on (default 500)"},
    {"finalists", "N", "placements of the top group that are timed at every length (default 3)"},
    {"repetitions", "N", "of a timing, of which the median counts (default 3)"},
    {"jobs", "N", "worker processes; timings run alone (default one per processor; with --launch 1 of each host)"},
    {"launch", "COMMAND", "starts a worker on another machine, such as \"ssh HOST\"; one for each machine", true},
    {"trial-timeout", "SECONDS", "longest trial of --screen examples before its worker is killed (default 120)"},
    {"trial-memory", "SIZE", "most memory of a worker, such as 8GiB (default half of the machine's)"},
    {"rows", "N", "placements that the table shows (default 12)"},
};

search::Metric usual_metric(const json& description) {
  using search::Metric;
  if (description["head"]["type"] == "embedding") return Metric::cosine;
  if (description["head"]["type"] == "classifier") return Metric::accuracy;
  return description["kind"] == "encoder-decoder" ? Metric::exact : Metric::perplexity;
}

std::string search_data(const Arguments& arguments, const json& description) {
  return data_path(arguments, own_settings(description), "data");
}

std::vector<float> read_recording(const std::string& path, const std::string& origin, const search::TaskFacts& facts) {
  try {
    return read_audio(path, origin, speech_format(facts));
  } catch (const Failure& e) {
    throw search::Failure(search::Fault::data, e.what());
  }
}

Exit exit_of(search::Fault fault) {
  constexpr Exit exits[] = {Exit::usage, Exit::manifest, Exit::data, Exit::interrupted, Exit::internal};
  return exits[static_cast<size_t>(fault)];
}

uint64_t trial_memory(const Arguments& arguments) {
  if (arguments.has("trial-memory")) return bytes_of(arguments, "trial-memory");
  return search::machine_memory().value_or(0) / 2;
}

search::Settings search_settings(const Arguments& arguments, const json& description) {
  const json own = own_settings(description);
  search::Settings s;
  s.strategy = static_cast<search::StrategyKind>(chosen(arguments, own, "strategy", search::strategy_names, "grid"));
  s.sampler = arguments.text("sampler", "");
  if (arguments.has("sampler") && arguments.has("strategy"))
    fail(Exit::usage, "--sampler and --strategy both say what is tried: give one of them");
  if (arguments.has("sampler") && s.sampler.empty()) fail(Exit::usage, "--sampler is empty: it must be a command");
  const bool is_grid = s.strategy == search::StrategyKind::grid && s.sampler.empty();
  if (is_grid && arguments.has("per-layer"))
    fail(Exit::usage, "--per-layer is of --strategy ablation or pareto and of --sampler: a grid places by role");
  s.per_layer = !is_grid && (arguments.has("per-layer") || own.value("per_layer", false));
  s.metric = static_cast<search::Metric>(chosen(arguments, own, "metric", search::metric_names,
                                                search::metric_names[static_cast<size_t>(usual_metric(description))]));
  if (const bool embeds = description["head"]["type"] == "embedding"; embeds != (s.metric == search::Metric::cosine))
    fail(Exit::usage, "--metric {}: {}", search::metric_names[static_cast<size_t>(s.metric)],
         embeds ? "this model gives out vectors, which are compared by cosine"
                : "this model gives out no vectors that could be compared");
  s.rank = static_cast<search::Rank>(chosen(arguments, own, "rank", search::rank_names, "rcp_mem"));
  if (s.rank == search::Rank::rcp_mem && !description["gpu"].is_null())
    fail(
        Exit::usage,
        "rank rcp_mem, which is the default, counts the memory of a process, and a GPU's is none of it: --rank rcp, or "
        "rank = \"rcp\" in [search]");
  const auto integer = [&](const char* key, int64_t fallback, int64_t low, int64_t high) {
    return arguments.integer(key, own.value(key, fallback), low, high);
  };
  s.length = integer("length", s.length, 1, int64_t{1} << 20);
  s.lengths = arguments.integers("lengths", own.value("lengths", s.lengths), 1, int64_t{1} << 20);
  s.lengths.push_back(s.length);
  std::sort(s.lengths.begin(), s.lengths.end());
  s.lengths.erase(std::unique(s.lengths.begin(), s.lengths.end()), s.lengths.end());
  s.limits = limits_of(arguments, own.value("limits", json::object()));
  if (s.limits.max_latency && description["kind"] == "encoder")
    fail(Exit::usage, "max-latency is of a token that is written, and this model writes none: leave it out");
  s.weights = weights_of(own);
  s.trials = static_cast<int>(integer("trials", s.trials, 1, 1000000));
  s.seed = static_cast<uint64_t>(integer("seed", 1, 0, UINT32_MAX));
  if (arguments.has("quick") && arguments.has("thorough"))
    fail(Exit::usage, "--quick and --thorough contradict each other: give one of them");
  if (arguments.has("quick")) s.effort = search::Effort::quick;
  if (arguments.has("thorough")) s.effort = search::Effort::thorough;
  s.confidence = arguments.number("confidence", 0.95, 0.5, 0.999);
  s.screen = arguments.integer("screen", s.screen, 1, INT32_MAX);
  s.finalists = static_cast<int>(arguments.integer("finalists", s.finalists, 1, 1000));
  s.repetitions = static_cast<int>(arguments.integer("repetitions", s.repetitions, 1, 1000));
  const auto processors = static_cast<int>(core::usable_processors());
  s.jobs = static_cast<int>(arguments.integer("jobs", arguments.has("launch") ? 1 : processors, 1, 256));
  s.threads = static_cast<int>(arguments.integer("threads", 1, 1, 1024));
  s.trial_timeout = arguments.number("trial-timeout", 120, 0.1, 1e6);
  s.trial_memory = trial_memory(arguments);
  s.data = search_data(arguments, description);
  s.test = data_path(arguments, own, "test");
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
    names = split(list, ',');
  }
  return request;
}

std::string cpu_name(const std::string& gpu) {
  const std::string behind = gpu.empty() ? "" : ", " + gpu;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2) + behind;
  return "unknown" + behind;
}

std::vector<search::LoadedMechanism> loaded_mechanisms(const Runtime& runtime, const std::string& device) {
  std::vector<search::LoadedMechanism> found;
  const json list = json::parse(runtime.list());
  for (const json& plugin : list["plugins"])
    if (plugin["device"] == device) found.push_back({plugin["name"], plugin["file"]});
  return found;
}

}  // namespace attnkit::cli
