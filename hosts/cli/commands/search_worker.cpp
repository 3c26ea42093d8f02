// attnkit search-worker: answers the trials of a search until the search has gone, over a socket or, started by
// --launch on another machine, over standard input and output.
#include <unistd.h>

#include <array>
#include <filesystem>

#include "core/search/trial/same_files.hpp"
#include "core/search/trial/trials.hpp"
#include "core/search/worker/channel.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/search/setup.hpp"

namespace attnkit::cli {
namespace {

// Makes the model once, for a plugin that does not survive that to end this process.
nlohmann::json try_model(const nlohmann::json& request) {
  const Runtime runtime(1, request.at("plugin_path").get<std::string>());
  const Model model(runtime, request.at("manifest").get<std::string>());
  return nlohmann::json::object();
}

bool is_launched(const Arguments& arguments) { return arguments.text("DESCRIPTOR") == "-"; }

// The request as this machine takes it, with the same files and plugins.
nlohmann::json accepted(nlohmann::json open, const Arguments& arguments) {
  if (!is_launched(arguments)) return open;
  if (arguments.has("dir")) open = search::moved(open, std::filesystem::absolute(arguments.text("dir")).string());
  if (const std::string own = plugin_path(arguments); !own.empty()) open["plugin_path"] = own;
  nlohmann::json plugins;
  const Runtime runtime(1, open.at("plugin_path").get<std::string>());
  for (const search::LoadedMechanism& m : loaded_mechanisms(runtime, open.value("device", "cpu")))
    plugins[m.name] = m.file;
  search::check_expected(open, std::filesystem::read_symlink("/proc/self/exe").string(), plugins);
  return open;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

search::WorkerChannel channel_of(const Arguments& arguments) {
  if (is_launched(arguments)) return search::WorkerChannel::of_standard_files();
  return search::WorkerChannel(static_cast<int>(arguments.integer("DESCRIPTOR", -1, 3, 1 << 20)));
}

}  // namespace

const Options search_worker_options = {
    {"dir", "DIR", "where the model's folder is on this machine (default: where the search has it)"}};

Exit search_worker_command(const Arguments& arguments) {
  search::WorkerChannel channel = channel_of(arguments);
  std::optional<search::Trials> trials;
  while (const std::optional<nlohmann::json> request = channel.receive()) {
    if (trials)
      channel.send(trials->answer(*request));
    else if (request->value("kind", "") == "idle")
      channel.send(search::reply_to(*request, [] { return nlohmann::json::object(); }));
    else if (request->value("kind", "") == "try")
      channel.send(search::reply_to(*request, [&] { return try_model(*request); }));
    else
      channel.send(search::reply_to(*request, [&] {
        trials.emplace(accepted(*request, arguments), read_recording);
        nlohmann::json opened = trials->opened();
        opened["cpu"] = cpu_name(opened["gpu"]);
        opened["host"] = host_name();
        return opened;
      }));
  }
  return Exit::success;
}

}  // namespace attnkit::cli
