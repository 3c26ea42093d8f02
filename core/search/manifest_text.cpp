#include "core/search/manifest_text.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "core/base/formats/tomlpp.hpp"
#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

namespace fs = std::filesystem;

using Edits = std::map<std::string, std::string>;  // by path: the text that stands for a value

toml::table parse(const std::string& text) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    fail(Fault::manifest, "{}:{}: {}", e.source().begin.line, e.source().begin.column, e.description());
  }
}

// TOML has no control characters as they are, not in comments either.
std::string escaped(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? fmt::format("\\u{:04x}", c) : std::string(1, c);
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += escaped(c);
  }
  return out + '"';
}

std::string key_text(std::string_view key) {
  const bool bare = !key.empty() && key.find_first_not_of(
                                        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                        "0123456789_-") == std::string_view::npos;
  return bare ? std::string(key) : quoted(std::string(key));
}

std::string number_text(double x) {
  if (!std::isfinite(x)) return std::isnan(x) ? "nan" : x < 0 ? "-inf" : "inf";
  const std::string text = fmt::format("{}", x);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

// toml++ keeps the entries of a table sorted by name; people want them as they were written.
std::vector<std::pair<std::string, const toml::node*>> as_written(const toml::table& table) {
  std::vector<std::pair<std::string, const toml::node*>> entries;
  for (const auto& [key, node] : table) entries.emplace_back(key.str(), &node);
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    const toml::source_position x = a.second->source().begin, y = b.second->source().begin;
    return std::tie(x.line, x.column) < std::tie(y.line, y.column);
  });
  return entries;
}

std::string value_text(const toml::node& node, const std::string& path, const Edits& edits) {
  if (const auto edit = edits.find(path); edit != edits.end()) return edit->second;
  if (const auto* text = node.as_string()) return quoted(text->get());
  if (const auto* number = node.as_floating_point()) return number_text(number->get());
  std::string out;
  if (const toml::array* array = node.as_array()) {
    for (const toml::node& element : *array) out += (out.empty() ? "" : ", ") + value_text(element, path + "[]", edits);
    return "[" + out + "]";
  }
  if (const toml::table* table = node.as_table()) {
    for (const auto& [key, entry] : as_written(*table))
      out += (out.empty() ? "" : ", ") + key_text(key) + " = " + value_text(*entry, path + "." + key, edits);
    return out.empty() ? "{}" : "{ " + out + " }";
  }
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  fail(Fault::manifest, "{}: dates mean nothing in a manifest", path);
}

// The manifest anew: what stands before the first table, then every table.  An edit of a whole table is its lines;
// an empty one takes it out.
std::string written(const toml::table& root, const Edits& edits) {
  std::string head, tables;
  for (const auto& [key, node] : as_written(root)) {
    const toml::table* table = node->as_table();
    if (!table) {
      head += key_text(key) + " = " + value_text(*node, key, edits) + "\n";
      continue;
    }
    const auto edit = edits.find(key);
    if (edit != edits.end() && edit->second.empty()) continue;
    tables += "\n[" + key_text(key) + "]\n";  // alone as well: [stream] needs no keys
    if (edit != edits.end())
      tables += edit->second;
    else
      for (const auto& [name, entry] : as_written(*table))
        tables += key_text(name) + " = " + value_text(*entry, key + "." + name, edits) + "\n";
  }
  return head + tables;
}

// Layers of a role by choice, those with the first layer's choice left out: the others need overrides.
std::map<int, std::string> exceptions(const Space& space, const Placement& placement, uint32_t role) {
  std::map<int, std::string> layers;
  const Unit unit = blocks_of(space, role);
  for (size_t s = unit.first + 1; s < unit.last; ++s) {
    if (placement[s] == placement[unit.first]) continue;
    std::string& list = layers[placement[s]];
    list += (list.empty() ? "" : ", ") + std::to_string(space.blocks[s].layer);
  }
  return layers;
}

std::string attention_text(const toml::table& root, const Space& space, const Placement& placement) {
  const auto toml_of = [&](int c) { return space.choice(c).toml; };
  std::string roles, overrides;
  for (uint32_t role : roles_of(space)) {
    roles += fmt::format("\"{}\" = {}\n", role_name(role), toml_of(placement[blocks_of(space, role).first]));
    for (const auto& [c, layers] : exceptions(space, placement, role))
      overrides +=
          fmt::format("  {{ block = \"{}\", layers = [{}], use = {} }},\n", role_name(role), layers, toml_of(c));
  }
  if (const toml::table* params = root["attention"]["params"].as_table())
    for (const auto& [name, options] : as_written(*params))
      roles += fmt::format("params.{} = {}\n", key_text(name), value_text(*options, "", {}));
  return roles + (overrides.empty() ? "" : "override = [\n" + overrides + "]\n");
}

std::string mechanism_of(const Choice& choice) {
  const toml::table key = parse("use = " + choice.toml);
  return key["use"].value<std::string>().value_or(key["use"]["use"].value_or(std::string()));
}

// Takes away the params of all other mechanisms.
void keep_params(toml::table& root, const std::set<std::string>& mechanisms) {
  toml::table* params = root["attention"]["params"].as_table();
  if (!params) return;
  std::vector<std::string> others;
  for (const auto& [name, options] : *params)
    if (!mechanisms.contains(std::string(name.str()))) others.emplace_back(name.str());
  for (const std::string& name : others) params->erase(name);
  if (params->empty()) root["attention"].as_table()->erase("params");
}

// The placement, without params of other mechanisms and without [search].
std::string used_only(const std::string& toml, const Space& space, const Placement& placement, Edits edits) {
  toml::table root = parse(toml);
  std::set<std::string> mechanisms;
  for (const int c : placement) mechanisms.insert(mechanism_of(space.choice(c)));
  keep_params(root, mechanisms);
  edits["attention"] = attention_text(root, space, placement);
  edits["search"] = "";
  return written(root, edits);
}

std::string commented(const std::string& comment) {
  std::istringstream lines(comment);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    out += line.empty() ? "#" : "# ";
    for (const char c : line) out += escaped(c);
    out += "\n";
  }
  return out;
}

void rebase(const toml::table& root, const std::string& path, const fs::path& from, const fs::path& to, Edits& edits) {
  const auto text = root.at_path(path).value<std::string>();
  if (!text || fs::path(*text).is_absolute()) return;
  const fs::path whole = (from / *text).lexically_normal(), seen = whole.lexically_relative(to);
  edits[path] = quoted((seen.empty() ? whole : seen).generic_string());
}

}  // namespace

ManifestText::ManifestText(std::string toml) : toml_(std::move(toml)) { parse(toml_); }

std::string ManifestText::with(const Space& space, const Placement& placement, int64_t max_length) const {
  const toml::table root = parse(toml_);
  Edits edits = {{"attention", attention_text(root, space, placement)}, {"search", ""}};
  std::string text = written(root, edits);
  constexpr int64_t usual = 512;
  if (root.at_path("model.max_length").value_or(usual) >= max_length) return text;
  if (root.at_path("model.max_length")) {
    edits["model.max_length"] = std::to_string(max_length);
    return written(root, edits);
  }
  const std::string header = "\n[model]\n";
  return text.insert(text.find(header) + header.size(), fmt::format("max_length = {}\n", max_length));
}

std::vector<std::pair<std::string, std::string>> ManifestText::files() const {
  std::vector<std::pair<std::string, std::string>> found;
  const toml::table root = parse(toml_);
  for (const char* path : {"weights.file", "model.encoder.vocab", "model.encoder.ids", "model.decoder.vocab",
                           "model.decoder.ids", "length.lut", "length.file"})
    if (const auto file = root.at_path(path).value<std::string>()) found.emplace_back(path, *file);
  if (const auto names = root.at_path("weights.names").value<std::string>(); names && names->ends_with(".toml"))
    found.emplace_back("weights.names", *names);
  return found;
}

std::string ManifestText::attention() const {
  const toml::table root = parse(toml_);
  const toml::table* const attention = root["attention"].as_table();
  return attention ? value_text(*attention, "", {}) : "";
}

bool ManifestText::renames() const { return !!parse(toml_).at_path("weights.names"); }

std::string ManifestText::deployed(const Space& space, const Placement& placement, const std::string& from,
                                   const std::string& to, const std::string& comment) const {
  const toml::table root = parse(toml_);
  const fs::path source = fs::weakly_canonical(from), target = fs::weakly_canonical(to);
  Edits edits;
  for (const auto& [path, file] : files()) rebase(root, path, source, target, edits);
  return commented(comment) + used_only(toml_, space, placement, std::move(edits));
}

std::string ManifestText::bundled(const Space& space, const Placement& placement,
                                  const std::map<std::string, std::string>& paths, const std::string& sha256,
                                  const std::string& comment, const std::string& type) const {
  std::string weights = fmt::format("file = {}\nsha256 = {}\n", quoted(paths.at("weights.file")), quoted(sha256));
  const toml::table root = parse(toml_);
  const auto own = root.at_path("weights.type").value<std::string>();
  if (own || !type.empty()) weights += fmt::format("type = {}\n", quoted(type.empty() ? *own : type));
  if (root.at_path("weights.tf32").value_or(false)) weights += "tf32 = true\n";
  Edits edits = {{"weights", weights}};
  for (const auto& [key, path] : paths) edits[key] = quoted(path);
  return commented(comment) + used_only(toml_, space, placement, std::move(edits));
}

}  // namespace attnkit::core::search
