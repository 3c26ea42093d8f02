// attnkit search: which mechanism in which block.
#include <fmt/chrono.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "core/base/clock.hpp"
#include "core/search/failure.hpp"
#include "core/search/result.hpp"
#include "core/search/trial/same_files.hpp"
#include "hosts/cli/bundle/bundle.hpp"
#include "hosts/cli/bundle/staging.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/report/report.hpp"
#include "hosts/cli/search/setup.hpp"
#include "hosts/cli/search/table.hpp"

namespace attnkit::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using namespace std::chrono_literals;

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

// 0: unknown.
size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// A line that a terminal wraps is not cleared by the next one, so the trial's name gives way.
std::string fitted(const std::string& before, std::string latest, const std::string& after, size_t columns) {
  const size_t others = before.size() + after.size() + 1;
  if (columns > 0 && others + latest.size() > columns) {
    const size_t room = columns > others + 3 ? columns - others - 3 : 0;
    latest = latest.substr(0, room) + "...";
  }
  const std::string line = before + latest + after;
  return columns > 0 ? line.substr(0, columns - 1) : line;
}

// Progress of a search on standard error: one line that is drawn anew on a terminal, else a line per stage or 30 s.
class SearchProgress {
 public:
  explicit SearchProgress(Progress mode) : mode_(mode) {
    if (mode_ == Progress::automatic) mode_ = isatty(STDERR_FILENO) ? Progress::bar : Progress::plain;
  }
  ~SearchProgress() { clear(); }
  SearchProgress(const SearchProgress&) = delete;

  void clear() {
    if (drawn_) note("\r\x1b[K");
    drawn_ = false;
  }

  void show(const search::Progress& p) {
    if (mode_ == Progress::none || p.total == 0) return;
    const Clock::time_point now = Clock::now();
    if (p.stage != stage_ || p.done == 1) {
      stage_ = p.stage;
      start_ = last_;
      done_before_ = p.done - 1;
    }
    const bool bar = mode_ == Progress::bar;
    if (p.done < p.total && now - last_ < (bar ? 100ms : 30s)) return;
    last_ = now;
    const double elapsed = std::max(1e-3, std::chrono::duration<double>(now - start_).count());
    const double rate = static_cast<double>(p.done - done_before_) / elapsed;
    const std::string line = fitted(
        fmt::format("[{}/{}] {} ", p.done, p.total, p.stage), p.latest,
        fmt::format(" {} % {:.1f} trials/s eta {}{}", p.done * 100 / p.total, rate,
                    clock_text(static_cast<double>(p.total - p.done) / rate), p.best.empty() ? "" : " best " + p.best),
        bar ? terminal_columns() : 0);
    note(bar ? "\r" + line + "\x1b[K" : line + "\n");
    drawn_ = bar;
  }

 private:
  Progress mode_;
  std::string stage_;
  size_t done_before_ = 0;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

struct Paths {
  fs::path folder;
  std::string in(const char* name) const { return (folder / name).string(); }
};

void make_folder(const Paths& paths) {
  std::error_code error;
  fs::create_directories(paths.folder, error);
  if (error || !fs::is_directory(paths.folder))
    fail(Exit::data, "{}: {}", quote(paths.folder.string()), error ? error.message() : "is no folder");
}

void check_bundle(const Arguments& arguments, const Paths& paths) {
  if (!arguments.has("bundle")) return;
  const std::string bundle = arguments.text("bundle");
  check_new_folder(bundle);
  const fs::path seen = fs::weakly_canonical(paths.folder).lexically_relative(fs::weakly_canonical(bundle));
  if (seen.empty() || *seen.begin() == "..") return;
  fail(Exit::usage, "--bundle {} would hold the folder of --output, {}: name another", quote(bundle),
       quote(paths.folder.string()));
}

// All else is kept when this fails, so it can be done again without the search.
void make_bundle(const Runtime& runtime, const Arguments& arguments, const Paths& paths) {
  const std::string winner = paths.in("winner.toml"), folder = arguments.text("bundle");
  try {
    write_bundle(runtime, open_model_quietly(runtime, winner), winner, folder);
  } catch (const Failure& e) {
    if (e.exit() == Exit::interrupted) throw;
    throw Failure(e.exit(), e.what(),
                  fmt::format("the search is done; attnkit bundle {} -o {}", shell_word(winner), shell_word(folder)));
  }
  note(fmt::format("bundle: {}\n", folder));
}

std::vector<std::string> worker_argv() { return {fs::read_symlink("/proc/self/exe").string(), "search-worker"}; }

// The manifest's own mechanisms may crash or hang when they are asked; that must not be this process.  What a model
// refuses is not looked at here: opening it says so with all its places.
void try_manifest(const Arguments& arguments) {
  constexpr double patience = 60;
  search::WorkerPool pool({worker_argv(), {{"kind", "idle"}}, trial_memory(arguments), "/dev/null"}, 1, patience);
  const json request = {
      {"kind", "try"}, {"manifest", arguments.text("MANIFEST")}, {"plugin_path", plugin_path(arguments)}};
  const std::vector<search::TrialRequest> requests = {{request, patience, 0}};
  std::optional<search::TrialReply> reply;
  pool.run(
      requests, [&](search::TrialReply r) { reply = std::move(r); }, [] { return is_interrupted(); });
  if (!reply) fail(Exit::interrupted, "interrupted");
  const bool is_short = reply->status == search::TrialReply::error && reply->body.value("kind", "") == "memory";
  const char* how = reply->status == search::TrialReply::crashed     ? "crashed the worker"
                    : reply->status == search::TrialReply::timed_out ? "stopped the worker"
                    : is_short                                       ? "cannot be opened"
                                                                     : nullptr;
  if (how) fail(Exit::plugin, "the manifest's own placement {}: {}", how, reply->reason);
}

// The program's own words follow a launcher that does not say which program to start.
std::shared_ptr<std::vector<search::LaunchedHost>> launched_hosts(const Arguments& arguments) {
  if (!arguments.has("launch")) return nullptr;
  auto hosts = std::make_shared<std::vector<search::LaunchedHost>>();
  for (const std::string& text : arguments.texts("launch")) {
    std::string command = text;
    if (command.find("search-worker") == std::string::npos) {
      for (const std::string& word : worker_argv()) command += " " + shell_word(word);
      command += " -";
    }
    const auto same = std::ranges::count(*hosts, command, &search::LaunchedHost::command);
    hosts->push_back({same == 0 ? text : fmt::format("{} ({})", text, same + 1), command});
  }
  return hosts;
}

// Each worker needs a descriptor here.
void allow_workers(size_t workers) {
  constexpr rlim_t others = 64;
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  const rlim_t needed = std::min<rlim_t>(files.rlim_max, workers + others);
  if (files.rlim_cur >= needed) return;
  files.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &files);
}

// The requirements of launched workers, and the processor of the timings: that of the first usable host.
void prepare_hosts(search::WorkerCommand& command, const search::ManifestText& manifest, int jobs, json& identity) {
  constexpr double patience = 60;
  if (!command.hosts) return;
  allow_workers(command.hosts->size() * static_cast<size_t>(jobs + 1));
  command.open["expects"] = search::expectations(manifest, command.open, identity);
  search::WorkerPool pool(command, 1, patience);
  const json opened = pool.open([] { return is_interrupted(); });
  command.cpu = opened["cpu"];
  identity["cpu"] = command.cpu;
  if (opened.contains("training")) identity["training"] = opened["training"];
}

// Their fates, in words where one was left out or lost trials; into the result's "machine".
void add_hosts(const std::vector<search::LaunchedHost>& hosts, Json& result) {
  Json list = Json::array();
  for (const search::LaunchedHost& h : hosts) {
    if (!h.reason.empty())
      note(fmt::format("left out: {}: {}\n", h.name, h.reason));
    else if (h.lost > 0)
      note(fmt::format("run elsewhere: {} of {}, the latest: {}\n", counted_text(h.lost, "trial"), h.name, h.trouble));
    const bool is_known = !h.opened.is_null();
    list.push_back({{"launch", h.name},
                    {"host", is_known ? Json(h.opened.value("host", "")) : Json()},
                    {"cpu", is_known ? Json(h.opened["cpu"]) : Json()},
                    {"trials", h.trials},
                    {"run_elsewhere", h.lost},
                    {"trouble", h.trouble.empty() ? Json() : Json(h.trouble)},
                    {"left_out", h.reason.empty() ? Json() : Json(h.reason)}});
  }
  result["machine"]["hosts"] = std::move(list);
}

search::WorkerCommand worker_command(const Arguments& arguments, const search::Settings& settings,
                                     const std::string& device, const Paths& paths) {
  const fs::path manifest = fs::absolute(arguments.text("MANIFEST"));
  const json open = {{"kind", "open"},
                     {"dir", manifest.parent_path().string()},
                     {"plugin_path", plugin_path(arguments)},
                     {"device", device},
                     {"threads", settings.threads},
                     {"data", settings.data},
                     {"test", settings.test},
                     {"toml", read_file(manifest.string())}};
  return {worker_argv(), open, settings.trial_memory, paths.in("workers.log"), launched_hosts(arguments)};
}

// The command that makes this search again, as a shell reads it.
std::string command_of(const Arguments& arguments, bool resume) {
  std::string command = "attnkit search";
  for (const std::string& token : arguments.tokens())
    if (!resume || token != "--resume") command += " " + shell_word(token);
  return command + (resume ? " --resume" : "");
}

[[noreturn]] void fail_interrupted(const Arguments& arguments) {
  throw Failure(Exit::interrupted, "interrupted; every finished trial is kept",
                "go on with: " + command_of(arguments, true));
}

// Written whole or not at all, the winner last: when it is there, all is there.
Json write_files(const search::Search& search, const search::ManifestText& manifest, const Arguments& arguments,
                 const Paths& paths, Json result) {
  result["files"] = {{"winner", nullptr}, {"report", paths.in("report.html")}, {"journal", paths.in("journal.jsonl")}};
  const search::Record* winner = search.winner();
  if (winner) result["files"]["winner"] = paths.in("winner.toml");
  std::error_code absent;
  fs::remove(paths.in("winner.toml"), absent);  // of a search before this one
  write_file(paths.in("result.json"), result.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  write_file(paths.in("report.html"), search_html(result));
  if (!winner) return result;
  const fs::path from = fs::absolute(arguments.text("MANIFEST")).parent_path();
  const std::string comment = fmt::format("Written by attnkit {} search from {}.\n{}", attnkit_version(),
                                          arguments.text("MANIFEST"), result["answer"]["text"].get<std::string>());
  write_file(paths.in("winner.toml"), manifest.deployed(search.space(), winner->placement, from.string(),
                                                        fs::absolute(paths.folder).string(), comment));
  return result;
}

Json with_circumstances(Json result, const Arguments& arguments, const json& description,
                        const search::Settings& settings, const json& identity, double seconds) {
  Json document = {{"schema", result["schema"]},
                   {"status", result["status"]},
                   {"version", attnkit_version()},
                   {"command", command_of(arguments, false)},
                   {"seconds", seconds},
                   {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))},
                   {"model",
                    {{"name", description["name"]},
                     {"kind", description["kind"]},
                     {"head", description["head"]},
                     {"manifest", arguments.text("MANIFEST")},
                     {"encoder_layers", description["encoder_layers"]},
                     {"decoder_layers", description["decoder_layers"]},
                     {"weights_sha256", identity.value("weights.file", json())},
                     {"data_sha256", identity["data"]},
                     {"test_sha256", settings.test.empty() ? json() : identity["test"]}}},
                   {"machine",
                    {{"cpu", cpu_name()},
                     {"processors", std::thread::hardware_concurrency()},
                     {"threads", settings.threads},
                     {"compiler", ATTNKIT_COMPILER},
                     {"commit", std::string(ATTNKIT_COMMIT).empty() ? json() : json(ATTNKIT_COMMIT)}}}};
  result.erase("schema");
  result.erase("status");
  document.update(result);
  return document;
}

Exit search_model(const Arguments& arguments, const Paths& paths) {
  const Clock::time_point start = Clock::now();
  check_bundle(arguments, paths);
  if (arguments.has("device"))
    fail(Exit::usage, "--device: a search runs where the manifest says; set \"device\" there");
  const Runtime runtime = open_runtime(arguments, 1);  // before workers: it says what is wrong with folders
  try_manifest(arguments);
  const Model model = open_model(runtime, arguments);
  const json description = json::parse(model.describe());
  search::Settings settings = search_settings(arguments, description);
  const std::string device = description["device"];
  search::WorkerCommand command = worker_command(arguments, settings, device, paths);
  const std::vector<search::LoadedMechanism> mechanisms = loaded_mechanisms(runtime, device);
  std::vector<std::string> names;
  for (const search::LoadedMechanism& m : mechanisms) names.push_back(m.name);
  const search::Space space = search::make_space(search_space(arguments, description, names));
  const search::ManifestText manifest(command.open["toml"]);
  const json& gpu = description["gpu"];
  json identity = search::identity_of(manifest, space, settings, command, mechanisms,
                                      gpu.is_null() ? cpu_name() : cpu_name(gpu["name"]));
  if (!gpu.is_null()) identity["device library"] = search::digest_of_file(gpu["library"]);
  if (model.info().sample_rate > 0) identity["recordings"] = search::digest_of_recordings(settings.data, settings.test);
  settings.test_is_data = !settings.test.empty() && identity["test"] == identity["data"];
  make_folder(paths);
  prepare_hosts(command, manifest, settings.jobs, identity);
  search::Journal journal = arguments.has("resume") ? search::Journal::resume(paths.in("journal.jsonl"), identity)
                                                    : search::Journal::create(paths.in("journal.jsonl"), identity);
  SearchProgress progress(arguments.progress());
  const search::Host host{[&](const search::Progress& p) { progress.show(p); }, [] { return is_interrupted(); }};
  search::Search search(settings, space, manifest, command, journal, host);
  search.run();
  progress.clear();
  const double seconds = seconds_since(start);
  Json result =
      with_circumstances(search::result_document(search), arguments, description, settings, identity, seconds);
  result["machine"]["cpu"] = identity["cpu"];
  if (command.hosts) add_hosts(*command.hosts, result);
  result = write_files(search, manifest, arguments, paths, std::move(result));
  if (arguments.json())
    print_json(result);
  else
    print(search_table(result, static_cast<size_t>(arguments.integer("rows", 12, 1, 1000000))));
  note(fmt::format("report: {}\n", paths.in("report.html")));
  if (!search.winner()) return Exit::gate;
  note(fmt::format("manifest: {}\n", paths.in("winner.toml")));
  if (arguments.has("bundle")) make_bundle(runtime, arguments, paths);
  return Exit::success;
}

}  // namespace

Exit search_command(const Arguments& arguments) {
  arguments.integer("rows", 12, 1, 1000000);
  const Paths paths{arguments.text("output", "search")};
  if (same_file(arguments.text("MANIFEST"), paths.in("winner.toml")))
    fail(Exit::usage, "{} is a file that this search would write: name another folder by --output",
         quote(arguments.text("MANIFEST")));
  try {
    return search_model(arguments, paths);
  } catch (const search::Failure& e) {
    if (e.fault() != search::Fault::interrupted) throw Failure(exit_of(e.fault()), e.what(), e.help());
    fail_interrupted(arguments);
  } catch (const Failure& e) {  // while files were read or written
    if (e.exit() != Exit::interrupted || !fs::exists(paths.in("journal.jsonl"))) throw;
    fail_interrupted(arguments);
  }
}

}  // namespace attnkit::cli
