// attnkit validate-plugin: every check of the contract on one plugin's file, each in a process of its own.
#include <chrono>
#include <filesystem>
#include <set>

#include "core/base/child.hpp"
#include "core/base/clock.hpp"
#include "core/base/plugin_process.hpp"
#include "core/base/text.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

const Options validate_plugin_options = {
    {"list", nullptr, "the checks and what each says, without a plugin"},
    {"only", "NAME", "this check alone, or those of a group; may be repeated", true},
    {"seed", "N", "of the random blocks, options and numbers; default: another one each time"},
    {"draws", "N", "random places beside the three fixed ones, for each check (default 4)"},
    {"timeout", "SECONDS", "how long a check may take (default 60)"},
    {"memory", "MIB", "how much memory a check may take (default 4096)"},
};

namespace {

struct Check {
  std::string name, law;
  bool gates = false;
};

struct Outcome {
  std::string check, verdict, reason;
  double seconds = 0;
};

constexpr const char* verdicts[] = {"passed", "refused", "failed", "not applicable"};

std::string program() {
  const std::string path = plugin_process();
  if (path.empty())
    throw Failure(Exit::internal, "attnkit-plugin-process is not beside libattnkit: this installation is not whole");
  return path;
}

std::vector<Check> list_checks(const std::string& process) {
  const ChildResult ran = run_child({process, "list"}, 60);
  std::vector<Check> checks;
  const Json list = Json::parse(ran.reply, nullptr, false);
  if (!list.is_array()) fail(Exit::internal, "{}: {}", process, ran.text());
  for (const Json& c : list) checks.push_back({c["name"], c["law"], c["gates"]});
  return checks;
}

// The checks that --only names, or all.
std::vector<Check> chosen(const std::vector<Check>& all, const std::vector<std::string>& only) {
  if (only.empty()) return all;
  std::vector<std::string> names;
  std::set<std::string> wanted;
  for (const Check& c : all) names.push_back(c.name);
  for (const std::string& name : only) {
    const size_t before = wanted.size();
    for (const std::string& candidate : names)
      if (candidate == name || candidate.starts_with(name + ".")) wanted.insert(candidate);
    if (wanted.size() == before)
      throw Failure(Exit::usage, fmt::format("no check {}{}", quote(name), did_you_mean(name, names)),
                    "attnkit validate-plugin --list names them");
  }
  std::vector<Check> some;
  for (const Check& c : all)
    if (wanted.count(c.name)) some.push_back(c);
  return some;
}

struct Settings {
  std::string process, file;
  uint64_t seed;
  int64_t draws, timeout, memory;
};

// A plugin's last words, short.
std::string words(const std::string& output) { return quote(output.substr(0, output.find('\n'))); }

Outcome perform(const Check& check, const Settings& s) {
  const auto start = Clock::now();
  const ChildResult ran =
      run_child({s.process, "check", s.file, check.name, std::to_string(s.seed), std::to_string(s.draws)},
                static_cast<double>(s.timeout), static_cast<uint64_t>(s.memory) << 20, is_interrupted);
  check_interrupt();
  Outcome out{check.name, "failed", "", seconds_since(start)};
  const Json reply = Json::parse(ran.reply, nullptr, false);
  const bool replied = reply.is_object();
  if (replied) out.verdict = reply["verdict"], out.reason = reply["reason"];
  if (replied && out.verdict == "failed") return out;
  if (ran.ending != ChildResult::ended || ran.status != 0 || !replied) {
    out.verdict = "failed";
    out.reason = fmt::format("the plugin's process {}{}", ran.text(), replied ? " after the check, when it ended" : "");
    if (!replied && ran.ending == ChildResult::ended) out.reason += ": the plugin ended it";
    if (!ran.output.empty()) out.reason += fmt::format("; it printed {}", words(ran.output));
  } else if (!ran.output.empty()) {
    out.verdict = "failed";
    out.reason = fmt::format("it printed {}", words(ran.output));
  }
  return out;
}

Json document(const Settings& s, const std::vector<Outcome>& outcomes, const std::map<std::string, int>& counts,
              bool ok) {
  Json json = {{"schema", "attnkit.plugin-validation/1"},
               {"file", s.file},
               {"ok", ok},
               {"seed", s.seed},
               {"draws", s.draws},
               {"counts", Json::object()},
               {"checks", Json::array()}};
  for (const char* verdict : verdicts) json["counts"][verdict] = counts.at(verdict);
  for (const Outcome& o : outcomes)
    json["checks"].push_back({{"name", o.check}, {"verdict", o.verdict}, {"reason", o.reason}, {"seconds", o.seconds}});
  return json;
}

std::string line_of(const Outcome& o) {
  return fmt::format("{:<14} {}{}{}\n", o.verdict, o.check, o.reason.empty() ? "" : ": ", o.reason);
}

Exit print_list(const Arguments& arguments, const std::vector<Check>& checks) {
  Json json = {{"schema", "attnkit.plugin-checks/1"}, {"checks", Json::array()}};
  Table table({"check", "what holds"});
  for (const Check& c : checks) {
    json["checks"].push_back({{"name", c.name}, {"law", c.law}});
    table.add({c.name, c.law});
  }
  print_result(arguments.json(), json, table.text());
  return Exit::success;
}

}  // namespace

Exit validate_plugin_command(const Arguments& arguments) {
  Settings s{program(), arguments.text("FILE"), 0, 0, 0, 0};
  const std::vector<Check> checks = chosen(list_checks(s.process), arguments.texts("only"));
  if (arguments.has("list")) return print_list(arguments, checks);
  if (s.file.empty()) fail(Exit::usage, "FILE is missing; usage: attnkit validate-plugin FILE [OPTION ...]");
  std::error_code bad;
  s.file = std::filesystem::absolute(s.file, bad).string();
  if (!std::filesystem::exists(s.file, bad))
    fail(Exit::data, "{}: {}", s.file, bad ? bad.message() : "there is no such file");
  const auto clock = std::chrono::system_clock::now().time_since_epoch().count();
  s.seed = static_cast<uint64_t>(arguments.integer("seed", clock % 1'000'000'000, 0, INT64_MAX));
  s.draws = arguments.integer("draws", 4, 0, 10'000);
  s.timeout = arguments.integer("timeout", 60, 1, 86'400);
  s.memory = arguments.integer("memory", 4096, 64, int64_t{1} << 30);
  if (!arguments.json())
    print(fmt::format("{}: {}, seed {}, {}\n", clean_line(s.file), counted_text(checks.size(), "check"), s.seed,
                      counted_text(static_cast<size_t>(s.draws), "draw")));
  std::vector<Outcome> outcomes;
  std::map<std::string, int> counts;
  for (const char* verdict : verdicts) counts[verdict] = 0;
  std::string stopped;
  for (const Check& check : checks) {
    check_interrupt();
    outcomes.push_back(stopped.empty() ? perform(check, s)
                                       : Outcome{check.name, "not applicable", "without " + stopped});
    const Outcome& o = outcomes.back();
    ++counts[o.verdict];
    // A check that could have been tried here, and was not, is said as well.
    const bool says = (check.gates && stopped.empty()) || o.reason.starts_with("no copy of its file");
    if (!arguments.json() && (o.verdict != "not applicable" || says)) print(line_of(o));
    if (check.gates && (o.verdict == "failed" || o.verdict == "not applicable") && stopped.empty())
      stopped = check.name;
  }
  const bool ok = counts["failed"] == 0;
  const std::string verdict =
      fmt::format("{}: {} passed, {} refused, {} failed, {} not applicable; seed {}\n", ok ? "ok" : "not ok",
                  counts["passed"], counts["refused"], counts["failed"], counts["not applicable"], s.seed);
  print_result(arguments.json(), document(s, outcomes, counts, ok), verdict);
  return ok ? Exit::success : Exit::gate;
}

}  // namespace attnkit::cli
