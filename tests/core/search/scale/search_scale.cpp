// search_scale [--workers N]... [--choices N] [--seconds S] [--folder DIR]: what a search costs the machine that it is
// started on, by the number of hosts, with workers that make up every figure after S seconds; a table of
// docs/benchmarks/search.md.
#include <fmt/format.h>
#include <sys/resource.h>

#include <boost/program_options.hpp>
#include <filesystem>
#include <iostream>

#include "core/base/clock.hpp"
#include "core/search/search.hpp"
#include "tests/core/search/strategy_support.hpp"

namespace po = boost::program_options;
namespace fs = std::filesystem;
using namespace attnkit::core::search;
using attnkit::core::Clock;
using attnkit::core::seconds_since;

namespace {

// Of this process, user and system.
double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Stage {
  size_t trials = 0;
  double wall = 0, cpu = 0;  // up to the reply of its last trial
};

WorkerCommand command_of(int hosts, double seconds, const fs::path& folder) {
  const nlohmann::json open = {
      {"kind", "open"}, {"lists", 500}, {"mischief", nlohmann::json::array()}, {"seconds", seconds}};
  WorkerCommand command{{"/bin/true"}, open, 0, (folder / "log").string()};
  command.hosts = std::make_shared<std::vector<LaunchedHost>>();
  for (int h = 0; h < hosts; ++h)
    command.hosts->push_back({fmt::format("host {}", h), "exec " ATTNKIT_SYNTHETIC_WORKER " search-worker -"});
  return command;
}

// Seconds of the processor that one more trial took, all stages, and what the medians of trial after trial were.
void print_rows(int hosts, int choices, double seconds, const fs::path& folder) {
  const fs::path path = folder / fmt::format("journal-{}.jsonl", hosts);
  Settings settings;
  settings.effort = Effort::quick;
  settings.jobs = 1;
  std::map<std::string, Stage> stages;
  std::vector<double> steps;
  double cpu = cpu_seconds();
  Clock::time_point last = Clock::now();
  const Clock::time_point start = last;
  const double cpu_start = cpu;
  const Host host{[&](const Progress& p) {
                    Stage& stage = stages[p.stage];
                    const double now = cpu_seconds();
                    ++stage.trials;
                    stage.wall += seconds_since(last);
                    stage.cpu += now - cpu;
                    steps.push_back(now - cpu);
                    cpu = now;
                    last = Clock::now();
                  },
                  {}};
  const ManifestText manifest{"[model]\nmax_length = 4096\n[attention]\n"};
  Journal journal = Journal::create(path.string(), nlohmann::json::object());
  Search search(settings, space_of(1, choices), manifest, command_of(hosts, seconds, folder), journal, host);
  search.run();
  size_t trials = 0;
  for (const auto& [name, stage] : stages) trials += stage.trials;
  const Stage& quality = stages["quality"];
  const double busy = static_cast<double>(quality.trials) * seconds / (quality.wall * hosts);
  fmt::print("| {} | {} | {:.0f} | {:.0f} | {:.0f} % | {:.2f} | {:.2f} | {:.2f} |\n", hosts, trials,
             seconds_since(start), static_cast<double>(quality.trials) / quality.wall, 100 * busy,
             1e3 * median_of(steps), 1e3 * quality.cpu / static_cast<double>(quality.trials),
             1e3 * (cpu_seconds() - cpu_start) / static_cast<double>(trials));
  std::cout << std::flush;
  for (const auto& [name, stage] : stages)
    std::cerr << fmt::format("{} hosts, {}: {} trials, {:.1f} s, {:.2f} ms of the processor each\n", hosts, name,
                             stage.trials, stage.wall, 1e3 * stage.cpu / static_cast<double>(stage.trials));
}

}  // namespace

int main(int argc, char** argv) {
  po::options_description options;
  po::variables_map values;
  const std::vector<int> all = {1, 10, 100, 1000};
  options.add_options()("workers", po::value<std::vector<int>>()->default_value(all, "1 10 100 1000"), "hosts")(
      "choices", po::value<int>()->default_value(16), "of each of three roles")(
      "seconds", po::value<double>()->default_value(1), "of a trial")(
      "folder",
      po::value<std::string>()->default_value((std::filesystem::temp_directory_path() / "search-scale").string()),
      "of the journals; new");
  try {
    po::store(po::parse_command_line(argc, argv, options), values);
    const fs::path folder = values["folder"].as<std::string>();
    fs::create_directories(folder);
    rlimit files = {};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    fmt::print(
        "| hosts | trials | seconds | quality trials a second | busy | ms of the processor a trial: median | quality | "
        "all |\n|---|---|---|---|---|---|---|---|\n");
    for (const int hosts : values["workers"].as<std::vector<int>>())
      print_rows(hosts, values["choices"].as<int>(), values["seconds"].as<double>(), folder);
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n" << options;
    return 2;
  }
}
