// One table of a manifest against its rules: every problem reported at once, then typed access to the sound values.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/manifest/keys.hpp"
#include "core/manifest/toml.hpp"

namespace attnkit::core {

class TableReader {
 public:
  // Reports unknown, missing, mistyped and out-of-bounds keys.  path names the rules ("model.encoder"); table must live
  // as long as the reader.
  TableReader(const Node& table, std::string_view path, Diagnostics& diagnostics);

  // Returns the entry when it is given and sound, else NULL.
  const Entry* given(std::string_view key) const;
  // Is it given, be it sound or not?
  bool mentioned(std::string_view key) const { return table_.find(key) != nullptr; }
  // Is it mentioned, perhaps misspelt?
  bool meant(std::string_view key) const { return mentioned(key) || suggested_.contains(key); }
  // Returns the place of the value when it is given, else that of the table.
  Place place(std::string_view key) const;

  // These return the given value, else the rule's fallback; nothing when there is neither or the given one is wrong.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::optional<int> choice(std::string_view key) const;  // index in the rule's choices
  // Of a set: its word, or what is in its array.
  std::vector<std::string> words(std::string_view key) const;
  const KeyRule& rule(std::string_view key) const;

 private:
  void report_unknown(const Entry& entry);
  void report_missing(const KeyRule& rule);
  void check(const KeyRule& rule, const Entry& entry);
  template <class Wrong>
  void check_members(const KeyRule& rule, const Node& array, const Wrong& wrong);
  void check_texts(const KeyRule& rule, const Node& array);
  std::string title() const { return path_.empty() ? "the manifest" : "[" + path_ + "]"; }

  const Node& table_;
  std::string path_;
  std::vector<const KeyRule*> rules_;
  Diagnostics& diagnostics_;
  std::set<std::string, std::less<>> wrong_, suggested_;
};

}  // namespace attnkit::core
