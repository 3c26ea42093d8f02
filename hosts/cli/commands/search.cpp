// attnkit search: which mechanism in which block.
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <filesystem>

#include "hosts/cli/command.hpp"
#include "core/search/failure.hpp"
#include "core/search/identity.hpp"
#include "core/search/result.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/machine.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/search/progress.hpp"
#include "hosts/cli/search/report/report.hpp"
#include "hosts/cli/search/setup.hpp"
#include "hosts/cli/search/table.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Exit exit_of(search::Fault fault) {
  switch (fault) {
    case search::Fault::usage:
      return Exit::usage;
    case search::Fault::manifest:
      return Exit::manifest;
    case search::Fault::data:
      return Exit::data;
    case search::Fault::interrupted:
      return Exit::interrupted;
    default:
      return Exit::internal;
  }
}

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

search::WorkerCommand worker_command(const Arguments& arguments, const search::Settings& settings, const Paths& paths) {
  const fs::path manifest = fs::absolute(arguments.text("MANIFEST"));
  const json open = {{"kind", "open"},
                     {"dir", manifest.parent_path().string()},
                     {"plugin_path", plugin_path(arguments)},
                     {"threads", settings.threads},
                     {"data", settings.data},
                     {"test", settings.test},
                     {"toml", read_file(manifest.string())}};
  return {worker_argv(), open, settings.trial_memory, paths.in("workers.log")};
}

// What makes this search again, as a shell reads it.
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
  write_file(paths.in("result.json"), result.dump(1) + "\n");
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
                        const search::Settings& settings, double seconds) {
  Json document = {{"schema", result["schema"]},
                   {"status", result["status"]},
                   {"version", attnkit_version()},
                   {"command", command_of(arguments, false)},
                   {"seconds", seconds},
                   {"date", today()},
                   {"model",
                    {{"name", description["name"]},
                     {"kind", description["kind"]},
                     {"head", description["head"]},
                     {"manifest", arguments.text("MANIFEST")},
                     {"encoder_layers", description["encoder_layers"]},
                     {"decoder_layers", description["decoder_layers"]}}},
                   {"machine", machine_json(settings.threads)}};
  result.erase("schema");
  result.erase("status");
  document.update(result);
  return document;
}

// Asks the plugins nothing: what they do when asked is for a worker to suffer.
std::vector<search::LoadedMechanism> loaded_mechanisms(const Runtime& runtime) {
  std::vector<search::LoadedMechanism> found;
  const json list = json::parse(runtime.list());
  for (const json& plugin : list["plugins"])
    if (plugin["device"] == "cpu") found.push_back({plugin["name"], plugin["file"]});
  return found;
}

Exit search_model(const Arguments& arguments, const Paths& paths) {
  const auto start = std::chrono::steady_clock::now();
  const Runtime runtime = open_runtime(arguments, 1);  // before workers: it says what is wrong with folders
  try_manifest(arguments);
  const Model model = open_model(runtime, arguments);
  if (model.info().sample_rate > 0)
    fail(Exit::usage, "search tries models on texts; {} takes speech: compare placements with attnkit stream",
         quote(arguments.text("MANIFEST")));
  const json description = json::parse(model.describe());
  const search::Settings settings = search_settings(arguments, description);
  const search::WorkerCommand command = worker_command(arguments, settings, paths);
  const std::vector<search::LoadedMechanism> mechanisms = loaded_mechanisms(runtime);
  std::vector<std::string> names;
  for (const search::LoadedMechanism& m : mechanisms) names.push_back(m.name);
  const search::Space space = search::make_space(search_space(arguments, description, names));
  const search::ManifestText manifest(command.open["toml"]);
  const json identity = search::identity_of(manifest, space, settings, command, mechanisms, cpu_name());
  make_folder(paths);
  search::Journal journal = arguments.has("resume") ? search::Journal::resume(paths.in("journal.jsonl"), identity)
                                                    : search::Journal::create(paths.in("journal.jsonl"), identity);
  SearchProgress progress(arguments.progress());
  const search::Host host{[&](const search::Progress& p) { progress.show(p); }, [] { return is_interrupted(); }};
  search::Search search(settings, space, manifest, command, journal, host);
  search.run();
  progress.clear();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const Json result =
      write_files(search, manifest, arguments, paths,
                  with_circumstances(search::result_document(search), arguments, description, settings, seconds));
  if (arguments.json())
    print_json(result);
  else
    print(search_table(result, static_cast<size_t>(arguments.integer("rows", 12, 1, 1000000))));
  note(fmt::format("report: {}\n", paths.in("report.html")));
  if (!search.winner()) return Exit::gate;
  note(fmt::format("manifest: {}\n", paths.in("winner.toml")));
  return Exit::success;
}

Exit run(const Arguments& arguments) {
  arguments.integer("rows", 12, 1, 1000000);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write
  const Paths paths{arguments.text("output", "search")};
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

}  // namespace

const Command search_command = {"search",
                                "search MANIFEST [OPTION ...]",
                                "finds the mechanism for every block by quality, throughput and memory",
                                "MANIFEST",
                                true,
                                search_options,
                                run};

}  // namespace attnkit::cli
