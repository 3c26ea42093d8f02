#include "hosts/cli/commands/plugin_page.hpp"

#include "hosts/cli/io/table.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

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

std::string lengths_text(const Json& lengths) {
  std::vector<std::string> names;
  for (const std::string name : lengths) names.push_back(name == "query" ? "the target's" : "the source's");
  return names.empty() ? "" : fmt::format(", given {} whole length", joined(names, " and "));
}

// In the mechanism's own words, without its name, which the page begins with.
std::string refusal_text(const Json& refused, const std::string& name) {
  const std::string text = refused["refusal"];
  return text.starts_with(name + ": ") ? text.substr(name.size() + 2) : text;
}

std::string streaming_text(const Json& stream, const std::string& name) {
  if (!stream["fits"].get<bool>()) return "no streaming: " + refusal_text(stream, name);
  const Json &at_512 = stream["state_bytes"]["512"], &at_4096 = stream["state_bytes"]["4096"];
  return fmt::format("streams{}; state {} at 512 tokens, {} at 4096{}", lengths_text(stream["lengths"]),
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
    out += fmt::format("yes{}; {} flops for 512 tokens; {}\n", lengths_text(place["lengths"]),
                       count_text(place["flops"].get<double>()), streaming_text(place["stream"], plugin["name"]));
  }
  return out;
}

}  // namespace

std::string plugin_page(const Json& plugin) {
  const auto text = [&](const char* key) { return plugin[key].get<std::string>(); };
  return fmt::format("{} ({}): {}\n{}\n{}, built for ABI 1.{}, state revision {}\n{}{}{}", text("name"), text("device"),
                     text("summary"), text("citation"), text("file"), plugin["abi_minor"].get<int>(),
                     text("state_revision"), options_text(plugin), weights_text(plugin), places_text(plugin));
}

}  // namespace attnkit::cli
