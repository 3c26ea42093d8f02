// attnkit plugins: all mechanisms as a table, or one of them in full.
#include <algorithm>
#include <filesystem>
#include <set>

#include "core/base/roles.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

// The place that stands for a mechanism's costs: decoder.self where it fits, else one that streams, else any.
const Json* typical(const Json& plugin) {
  const auto rank = [](const Json& place) {
    return place["role"] == role_name(ATTN_DECODER_SELF) ? 2 : place["stream"]["fits"].get<bool>() ? 1 : 0;
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
  return !any ? "no" : all ? "yes" : "partly";
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

std::string allowed_text(const Json& option) {
  if (option.contains("choices")) return joined(option["choices"].get<std::vector<std::string>>(), " | ");
  if (option.contains("min")) return fmt::format("{} .. {}", option["min"].dump(), option["max"].dump());
  return option["type"] == "bool" ? "true | false" : "any";
}

std::string options_text(const Json& plugin) {
  if (plugin["options"].empty()) return "\noptions: none\n";
  Table table({"  option", "type", "default", "allowed", "meaning"});
  for (const Json& o : plugin["options"])
    table.add({"  " + o["name"].get<std::string>(), o["type"], o["default"].dump(), allowed_text(o), o["doc"]});
  return "\noptions:\n" + table.text();
}

std::string shape_text(const Json& shape) {
  std::vector<std::string> sizes;
  for (const int64_t n : shape) sizes.push_back(std::to_string(n));
  return sizes.empty() ? "scalar" : joined(sizes, "x");
}

// The weights of the first place that has some: they are the same everywhere but for sizes.
std::string weights_text(const Json& plugin) {
  for (const Json& place : plugin["places"]) {
    if (!place.contains("tensors") || place["tensors"].empty()) continue;
    Table table({"  weight", "kind", "type", "shape", "stored", "meaning"});
    for (const Json& t : place["tensors"])
      table.add({"  " + t["name"].get<std::string>(), t["kind"], t["dtype"], shape_text(t["shape"]),
                 t["per_model"].get<bool>() ? "once per model" : "per block", t["doc"]});
    return "\nweights of its own (for d_model 128, 4 heads):\n" + table.text();
  }
  return "\nweights of its own: none\n";
}

std::string lengths_text(const Json& lengths, const std::string& role) {
  const bool cross = role == role_name(ATTN_DECODER_CROSS), source = role == role_name(ATTN_ENCODER_SELF);
  std::vector<std::string> names;
  for (const std::string name : lengths) {
    const std::string whose = source || (cross && name == "key") ? "the source's" : "the target's";
    if (std::ranges::count(names, whose) == 0) names.push_back(whose);
  }
  return names.empty() ? "" : fmt::format(", given {} whole length", joined(names, " and "));
}

// The mechanism's own message without its name, with which the page begins.
std::string refusal_text(const Json& refused, const std::string& name) {
  const std::string text = refused["refusal"];
  return text.starts_with(name + ": ") ? text.substr(name.size() + 2) : text;
}

std::string streaming_text(const Json& place, const std::string& name) {
  const Json& stream = place["stream"];
  if (!stream["fits"].get<bool>()) return "no streaming: " + refusal_text(stream, name);
  const Json &at_512 = stream["state_bytes"]["512"], &at_4096 = stream["state_bytes"]["4096"];
  return fmt::format("streams{}; state {} at 512 tokens, {} at 4096{}", lengths_text(stream["lengths"], place["role"]),
                     at_512.is_number() ? bytes_text(at_512) : "?", at_4096.is_number() ? bytes_text(at_4096) : "?",
                     stream["growing_source"].get<bool>() ? "" : "; not while the source grows");
}

std::string places_text(const Json& plugin) {
  std::string out = "\nplaces:\n";
  for (const Json& place : plugin["places"]) {
    out += fmt::format("  {}{}: ", place["role"].get<std::string>(), place["causal"].get<bool>() ? ", causal" : "");
    if (!place["fits"].get<bool>()) {
      out += fmt::format("no: {}\n", refusal_text(place, plugin["name"]));
      continue;
    }
    out += fmt::format("yes{}; {} flops for 512 tokens; {}\n", lengths_text(place["lengths"], place["role"]),
                       count_text(place["flops"].get<double>()), streaming_text(place, plugin["name"]));
  }
  return out;
}

// One mechanism in full.
std::string plugin_page(const Json& plugin) {
  const auto text = [&](const char* key) { return plugin[key].get<std::string>(); };
  return fmt::format("{} ({}): {}\n{}\n{}, built for ABI 1.{}, state revision {}\n{}{}{}", text("name"), text("device"),
                     text("summary"), text("citation"), text("file"), plugin["abi_minor"].get<int>(),
                     text("state_revision"), options_text(plugin), weights_text(plugin), places_text(plugin));
}

// Throws when a file that should hold the mechanism was skipped.
void check_skipped(const Json& runtime, const std::string& name) {
  for (const Json& s : runtime["skipped"]) {
    const std::string path = s["path"], file = std::filesystem::path(path).filename().string();
    std::error_code unknown;
    if (file == name + ".so" || (file.starts_with(name + "-") && file.ends_with(".so")) ||
        std::filesystem::exists(path + "/" + name + ".so", unknown))  // the folder was refused
      fail(Exit::plugin, "mechanism {} cannot be used: {}: {}", quote(name), path, s["reason"].get<std::string>());
  }
}

Json named(const Json& runtime, const std::string& name) {
  Json found = Json::array();
  std::vector<std::string> names;
  for (const Json& p : runtime["plugins"]) {
    names.push_back(p["name"]);
    if (p["name"] == name) found.push_back(p);
  }
  // One mechanism has a plugin for each device.
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (!found.empty()) return found;
  check_skipped(runtime, name);
  throw Failure(
      Exit::plugin, fmt::format("no mechanism {} was found{}", quote(name), did_you_mean(name, names)),
      names.empty() ? "attnkit doctor tells where plugins are searched" : "found were: " + joined(names, ", "));
}

}  // namespace

Exit plugins_command(const Arguments& arguments) {
  const Json runtime = Json::parse(open_runtime(arguments).describe());
  const std::string name = arguments.text("NAME");
  const Json plugins = name.empty() ? runtime["plugins"] : named(runtime, name);
  std::string pages;
  if (!name.empty())
    for (const Json& p : plugins) pages += (pages.empty() ? "" : "\n") + plugin_page(p);
  print_result(arguments.json(), {{"schema", "attnkit.plugins/1"}, {"plugins", plugins}},
               name.empty() ? list_text(plugins) : pages);
  if (!plugins.empty()) return Exit::success;
  note("attnkit: no plugin was found\n  help: attnkit doctor tells where plugins are searched\n");
  return Exit::plugin;
}

}  // namespace attnkit::cli
