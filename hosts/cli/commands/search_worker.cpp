// attnkit search-worker: answers the trials of a search until the search has gone.  Not for people.
#include "core/search/trial/trials.hpp"
#include "core/search/worker/channel.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/search/setup.hpp"

namespace attnkit::cli {
namespace {

// Makes the model once, for a plugin that does not survive that to end this process.
nlohmann::json try_model(const nlohmann::json& request) {
  const Runtime runtime(1, request.at("plugin_path").get<std::string>());
  const Model model(runtime, request.at("manifest").get<std::string>());
  return nlohmann::json::object();
}

}  // namespace

Exit search_worker_command(const Arguments& arguments) {
  search::WorkerChannel channel(static_cast<int>(arguments.integer("DESCRIPTOR", -1, 3, 1 << 20)));
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
        trials.emplace(*request, read_recording);
        return trials->opened();
      }));
  }
  return Exit::success;
}

}  // namespace attnkit::cli
