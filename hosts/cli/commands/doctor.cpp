// attnkit doctor: the features of this machine, the plugin folders, why files in them were not loaded, and which
// plugins break the contract.
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/base/first_load_cache.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

const Options doctor_options = {
    {"rescan", nullptr, "tries every plugin again in a process of its own before it is loaded"},
};

namespace {

// Plugins that broke the contract when they were asked, with what they did first.
Json broken_of(const Json& runtime) {
  Json broken = Json::array();
  for (const Json& p : runtime["plugins"])
    for (const Json& place : p["places"]) {
      const Json* faulty = place.contains("faulty") ? &place : nullptr;
      if (!faulty && place.contains("stream") && place["stream"].contains("faulty")) faulty = &place["stream"];
      if (!faulty) continue;
      broken.push_back(
          {{"name", p["name"]}, {"device", p["device"]}, {"file", p["file"]}, {"reason", (*faulty)["refusal"]}});
      break;
    }
  return broken;
}

Json document(const Json& runtime) {
  Json json = {{"schema", "attnkit.doctor/1"}, {"ok", !runtime["plugins"].empty()}};
  for (const char* key : {"version", "abi", "cpu_features", "threads", "device", "search_path", "first_load"})
    json[key] = runtime[key];
  json["plugins"] = Json::array();
  for (const Json& p : runtime["plugins"])
    json["plugins"].push_back(
        {{"name", p["name"]}, {"device", p["device"]}, {"abi_minor", p["abi_minor"]}, {"file", p["file"]}});
  json["broken"] = broken_of(runtime);
  json["skipped"] = runtime["skipped"];
  return json;
}

std::string text_of(const Json& runtime) {
  const std::vector<std::string> features = runtime["cpu_features"];
  std::string out = fmt::format("attnkit {}, ABI {}.{}\n", runtime["version"].get<std::string>(),
                                runtime["abi"]["major"].get<int>(), runtime["abi"]["minor"].get<int>());
  out +=
      fmt::format("processor: {}\n", features.empty() ? "no features that kernels choose by" : joined(features, " "));
  out += fmt::format("threads: {}\n\nplugin folders, in the order of the search:\n", runtime["threads"].get<int>());
  for (const std::string folder : runtime["search_path"]) {
    std::error_code bad;
    out += fmt::format("  {}{}\n", clean_line(folder), std::filesystem::is_directory(folder, bad) ? "" : " (missing)");
  }
  const std::string program = runtime["first_load"]["program"], cache = runtime["first_load"]["cache"];
  if (program.empty())
    out +=
        "\nnew plugins are loaded untried: attnkit/attnkit-plugin-process, which tries them in a process of its own, "
        "is "
        "not beside libattnkit\n";
  else
    out += fmt::format("\nnew plugins are tried by {}\n  what came of it is kept in {}\n", program,
                       cache.empty() ? "no file: neither XDG_CACHE_HOME nor HOME is set" : cache);
  out += fmt::format("\n{} plugins:\n", runtime["plugins"].size());
  Table table({"  name", "device", "file"});
  for (const Json& p : runtime["plugins"]) table.add({"  " + p["name"].get<std::string>(), p["device"], p["file"]});
  if (!runtime["plugins"].empty()) out += table.text();
  const Json broken = broken_of(runtime);
  if (!broken.empty())
    out += fmt::format("\n{} {} the contract:\n", broken.size(), broken.size() == 1 ? "breaks" : "break");
  for (const Json& b : broken)
    out += fmt::format("  {} {} {}\n    {}\n", b["name"].get<std::string>(), b["device"].get<std::string>(),
                       b["file"].get<std::string>(), b["reason"].get<std::string>());
  if (runtime["skipped"].empty()) return out;
  out += fmt::format("\n{} skipped:\n", runtime["skipped"].size());
  for (const Json& s : runtime["skipped"])
    out += fmt::format("  {}\n    {}\n", clean_line(s["path"].get<std::string>()), s["reason"].get<std::string>());
  return out;
}

void forget_first_loads() {
  const std::string cache = first_load_cache();
  if (!cache.empty() && std::remove(cache.c_str()) != 0 && errno != ENOENT)
    fail(Exit::data, "{}: cannot be removed: {}", cache, std::strerror(errno));
}

}  // namespace

Exit doctor_command(const Arguments& arguments) {
  if (arguments.has("rescan")) forget_first_loads();
  const Json runtime = Json::parse(open_runtime(arguments).describe());
  print_result(arguments.json(), document(runtime), text_of(runtime));
  if (!runtime["plugins"].empty()) return Exit::success;
  note(
      "attnkit: no plugin was found\n"
      "  help: --plugin-dir DIR or ATTNKIT_PLUGIN_PATH names a folder; the installed one is lib/attnkit/1\n");
  return Exit::plugin;
}

}  // namespace attnkit::cli
