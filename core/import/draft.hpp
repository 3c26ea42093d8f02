// A manifest while it is made: what it says so far, the files that it is made from, and what they leave open.
#pragma once

#include <filesystem>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/json.hpp"
#include "core/import/import.hpp"

namespace attnkit::core {

namespace fs = std::filesystem;

constexpr uint64_t max_json = uint64_t{64} << 20;
constexpr const char* guide = "docs/importing.md lists what is supported, and shows how to add an architecture";

// Throws ImportFailure.
[[noreturn]] void refuse(const std::string& message, const std::string& help = guide);

// Returns the files of a folder whose names have `part` in them and end in `ending`, sorted.
std::vector<fs::path> files_named(const fs::path& folder, std::string_view part, std::string_view ending);

// Returns the text as a string of TOML.
std::string toml_of(const std::string& text);

class Draft {
 public:
  explicit Draft(const ImportRequest& request) : request_(request) {}
  const ImportRequest& request() const { return request_; }

  // A file that the manifest is made from, or may refer to.  take: one that must be there.
  void use(const fs::path& path) { made_.files.push_back(path.string()); }
  std::optional<fs::path> find(const fs::path& path);
  fs::path take(const fs::path& path, const std::string& help);
  // The JSON of such a file, which is there as long as this is.
  JsonValue read(const fs::path& path);
  std::optional<JsonValue> find_json(const fs::path& path);

  // Adds a line to a table, "model.encoder", unless the key is said already: an architecture's file goes before what
  // other files say.  Values are TOML; an empty list is not added.
  void add(const std::string& table, const std::string& key, const std::string& value);
  void add_text(const std::string& table, const std::string& key, const std::string& text);
  void add_file(const std::string& table, const std::string& key, const fs::path& path);
  void add_list(const std::string& table, const std::string& key, const std::vector<std::string>& values);
  void add_texts(const std::string& table, const std::string& key, std::vector<std::string> texts);
  bool has(const std::string& table) const { return tables_.contains(table); }
  // Returns a key's value; NULL: it is not said.
  const std::string* said(const std::string& table, const std::string& key) const;

  void note(std::string text) { made_.notes.push_back(std::move(text)); }
  void note_unsaid(const JsonValue& setting, const std::string& key);

  Imported finish(const std::string& architecture, const fs::path& weights);

 private:
  std::string seen_from_manifest(const fs::path& path) const;
  std::string inline_table(const std::string& table) const;
  std::string text(const fs::path& weights) const;

  const ImportRequest& request_;
  std::map<std::string, std::vector<std::pair<std::string, std::string>>> tables_;  // keys and values, in order
  std::list<nlohmann::json> documents_;
  Imported made_;
};

}  // namespace attnkit::core
