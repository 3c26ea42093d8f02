// attnkit plugins: the mechanisms that were found, as a table or one of them in full.
#include <algorithm>
#include <set>

#include "hosts/cli/command.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/commands/plugin_page.hpp"
#include "hosts/cli/io/table.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

Arguments::Options options() { return Arguments::Options(); }

std::string yes_no(bool any, bool all) { return all ? "yes" : any ? "partly" : "no"; }

// The place that stands for a mechanism's costs: decoder.self where it fits, else one that streams, else any.
const Json* typical(const Json& plugin) {
  const auto rank = [](const Json& place) {
    return place["role"] == "decoder.self" ? 2 : place["stream"]["fits"].get<bool>() ? 1 : 0;
  };
  const Json* best = nullptr;
  for (const Json& place : plugin["places"])
    if (place["fits"].get<bool>() && (!best || rank(place) > rank(*best))) best = &place;
  return best;
}

std::string roles_of(const Json& plugin) {
  std::set<std::string> fitting;
  std::vector<std::string> names;
  for (const Json& place : plugin["places"])
    if (place["fits"].get<bool>() && fitting.insert(place["role"]).second) names.push_back(place["role"]);
  return names.size() == 3 ? "all" : names.empty() ? "none" : joined(names, " ");
}

std::string causal_of(const Json& plugin) {
  bool any = false, all = true;
  for (const Json& place : plugin["places"]) {
    if (!place["causal"].get<bool>()) continue;
    any |= place["fits"].get<bool>();
    all &= place["fits"].get<bool>();
  }
  return yes_no(any, any && all);
}

std::string streaming_of(const Json& place) {
  const Json& stream = place["stream"];
  if (!stream["fits"].get<bool>()) return "no";
  return stream["lengths"].empty() ? "yes" : "needs length";
}

std::string state_of(const Json& place, const char* length) {
  const Json& stream = place["stream"];
  if (!stream["fits"].get<bool>() || !stream["state_bytes"][length].is_number()) return "-";
  return bytes_text(stream["state_bytes"][length]);
}

std::string list_text(const Json& plugins) {
  Table table({"name", "device", "roles", "causal", "streaming", ">state at 512", ">at 4096", ">flops, 512 tokens",
               ">one more token"});
  for (const Json& p : plugins) {
    const Json* place = typical(p);
    if (!place) {
      table.add({p["name"], p["device"], "none", "no", "no", "-", "-", "-", "-"});
      continue;
    }
    const Json& stream = (*place)["stream"];
    table.add({p["name"], p["device"], roles_of(p), causal_of(p), streaming_of(*place), state_of(*place, "512"),
               state_of(*place, "4096"), count_text((*place)["flops"].get<double>()),
               stream["fits"].get<bool>() ? count_text(stream["flops"].get<double>()) : "-"});
  }
  return table.text() +
         "\nState and flops are those of one block, d_model 128 and 4 heads, in decoder.self where it fits,\n"
         "else where it streams.\n"
         "\"attnkit plugins NAME\" shows options, weights, refusals and the citation.\n";
}

Json named(const Json& plugins, const std::string& name) {
  Json found = Json::array();
  std::vector<std::string> names;
  for (const Json& p : plugins) {
    names.push_back(p["name"]);
    if (p["name"] == name) found.push_back(p);
  }
  // One mechanism has a plugin for each device.
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (found.empty())
    throw Failure(
        Exit::plugin, fmt::format("no mechanism {} was found{}", quote(name), did_you_mean(name, names)),
        names.empty() ? "attnkit doctor tells where plugins are searched" : "found were: " + joined(names, ", "));
  return found;
}

Exit run(const Arguments& arguments) {
  const Json runtime = Json::parse(open_runtime(arguments).describe());
  const std::string name = arguments.text("NAME");
  const Json plugins = name.empty() ? runtime["plugins"] : named(runtime["plugins"], name);
  if (arguments.json()) {
    print_json({{"schema", "attnkit.plugins/1"}, {"plugins", plugins}});
  } else if (name.empty()) {
    print(list_text(plugins));
  } else {
    std::string pages;
    for (const Json& p : plugins) pages += (pages.empty() ? "" : "\n") + plugin_page(p);
    print(pages);
  }
  if (!plugins.empty()) return Exit::success;
  note("attnkit: no plugin was found\n  help: attnkit doctor tells where plugins are searched\n");
  return Exit::plugin;
}

}  // namespace

const Command plugins_command = {"plugins",
                                 "plugins [NAME] [OPTION ...]",
                                 "the mechanisms; with NAME the options, weights, roles and refusals of one",
                                 "NAME",
                                 false,
                                 options,
                                 run};

}  // namespace attnkit::cli
