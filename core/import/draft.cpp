#include "core/import/draft.hpp"

#include <algorithm>

#include "core/base/text.hpp"

namespace attnkit::core {

void refuse(const std::string& message, const std::string& help) { throw ImportFailure(message, help); }

std::vector<fs::path> files_named(const fs::path& folder, std::string_view part, std::string_view ending) {
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.find(part) != std::string::npos && name.ends_with(ending)) all.push_back(entry.path());
  }
  std::ranges::sort(all);
  return all;
}

std::string toml_of(const std::string& text) {
  std::string quoted = nlohmann::json(text).dump();  // a string of JSON is one of TOML, all but DEL
  for (size_t at = 0; (at = quoted.find('\x7f', at)) != std::string::npos;) quoted.replace(at, 1, "\\u007f");
  return quoted;
}

std::optional<fs::path> Draft::find(const fs::path& path) {
  if (!fs::exists(path)) return {};
  use(path);
  return path;
}

fs::path Draft::take(const fs::path& path, const std::string& help) {
  if (!fs::exists(path)) refuse(fmt::format("{}: is not there", path.string()), help);
  return *find(path);
}

JsonValue Draft::read(const fs::path& path) {
  return {documents_.emplace_back(read_json(path.string(), max_json)), path.string()};
}

std::optional<JsonValue> Draft::find_json(const fs::path& path) {
  if (!find(path)) return {};
  return read(path);
}

void Draft::add(const std::string& table, const std::string& key, const std::string& value) {
  if (!said(table, key)) tables_[table].emplace_back(key, value);
}

void Draft::add_text(const std::string& table, const std::string& key, const std::string& text) {
  add(table, key, toml_of(text));
}

void Draft::add_file(const std::string& table, const std::string& key, const fs::path& path) {
  add_text(table, key, seen_from_manifest(path));
}

void Draft::add_list(const std::string& table, const std::string& key, const std::vector<std::string>& values) {
  if (!values.empty()) add(table, key, fmt::format("[{}]", fmt::join(values, ", ")));
}

void Draft::add_texts(const std::string& table, const std::string& key, std::vector<std::string> texts) {
  for (std::string& text : texts) text = toml_of(text);
  add_list(table, key, texts);
}

const std::string* Draft::said(const std::string& table, const std::string& key) const {
  if (const auto found = tables_.find(table); found != tables_.end())
    for (const auto& [own, value] : found->second)
      if (own == key) return &value;
  return nullptr;
}

void Draft::note_unsaid(const JsonValue& setting, const std::string& key) {
  note(fmt::format("{} says {} = {} of how texts are written, and the manifest does not", setting.path(), key,
                   setting.json().dump().substr(0, 60)));
}

Imported Draft::finish(const std::string& architecture, const fs::path& weights) {
  made_.architecture = architecture;
  made_.weights = weights.string();
  made_.toml = text(weights);
  return std::move(made_);
}

std::string Draft::text(const fs::path& weights) const {
  const fs::path folder = request_.folder;
  std::string name = request_.name;
  if (name.empty() && weights == folder) name = folder.stem().string();
  if (name.empty()) name = fs::absolute(folder / "").lexically_normal().parent_path().filename().string();
  std::string out = fmt::format("schema = \"attnkit.model/1\"\n\n[model]\nname = {}\n", toml_of(name));
  if (has("model"))
    for (const auto& [key, value] : tables_.at("model")) out += key + " = " + value + "\n";
  for (const auto& [table, lines] : tables_)
    if (table.starts_with("model.") && table.find('.', 6) == std::string::npos)
      out += table.substr(6) + " = " + inline_table(table) + "\n";
  const std::string names =
      request_.architecture.empty() ? made_.architecture : seen_from_manifest(request_.architecture);
  out += fmt::format(
      "\n[weights]\nfile = {}\nnames = {}\nseed = 1  # of what another mechanism has of its own and the file lacks\n",
      toml_of(seen_from_manifest(weights)), toml_of(names));
  for (const auto& [table, lines] : tables_) {
    if (table == "model" || table.starts_with("model.")) continue;
    const size_t several = table.find('[');
    if (several != std::string::npos) {
      // One of no layers is none; what it holds follows in its lines.
      if (table.back() != ']' || !said(table, "layers")) continue;
      out += fmt::format("\n[[{}]]\n", table.substr(0, several));
    } else {
      out += fmt::format("\n[{}]\n", table);
    }
    for (const auto& [key, value] : lines)
      out += (key.find('.') == std::string::npos ? key : quote(key)) + " = " + value + "\n";
    for (const auto& [inner, more] : tables_)
      if (several != std::string::npos && inner.starts_with(table + "."))
        out += inner.substr(table.size() + 1) + " = " + inline_table(inner) + "\n";
  }
  return out;
}

// "{ layers = 6, vocab = ..., features = { ... } }"
std::string Draft::inline_table(const std::string& table) const {
  std::vector<std::string> parts;
  for (const auto& [key, value] : tables_.at(table)) parts.push_back(key + " = " + value);
  for (const auto& [inner, lines] : tables_)
    if (inner.starts_with(table + ".")) parts.push_back(inner.substr(table.size() + 1) + " = " + inline_table(inner));
  return fmt::format("{{ {} }}", fmt::join(parts, ", "));
}

std::string Draft::seen_from_manifest(const fs::path& path) const {
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path from = fs::absolute(request_.manifest).lexically_normal().parent_path();
  std::error_code bad;
  // Through a link, ".." would lead elsewhere.
  if (fs::weakly_canonical(from, bad) != from || bad) return whole.string();
  const fs::path seen = whole.lexically_relative(from);
  return (seen.empty() ? whole : seen).string();
}

}  // namespace attnkit::core
