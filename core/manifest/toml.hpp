// TOML text as a plain tree with the place of every key and value; nothing else sees the TOML parser.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/manifest/diagnostics.hpp"

namespace attnkit::core {

struct Entry;

struct Node {
  enum class Kind { table, array, text, integer, number, boolean, date };
  Kind kind = Kind::table;
  Place place;  // of the value; of a [table], its header
  std::string text;
  int64_t integer = 0;
  double number = 0;  // of an integer too
  bool boolean = false;
  std::vector<Entry> entries;  // of a table, by place
  std::vector<Node> items;     // of an array

  const Entry* find(std::string_view key) const;
};

struct Entry {
  std::string key;
  Place place;  // of the key
  Node value;
};

constexpr size_t max_manifest_bytes = 64 * 1024;

// Returns the root table.  Columns count bytes.  Text that is no TOML, no UTF-8, too large or too deep gives one
// diagnostic and an empty table.
Node parse_toml(std::string_view text, Diagnostics& diagnostics);

// A value as a manifest would write it, on one line.
std::string toml_text(const std::string& value);
std::string toml_text(int64_t value);
std::string toml_text(double value);
std::string toml_text(bool value);

// For messages: "text", "a table"; and a text, quoted, or a number.
const char* kind_name(Node::Kind kind);
std::string value_text(const Node& value);

}  // namespace attnkit::core
