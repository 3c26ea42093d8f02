// TOML text as a plain tree with the place of every key and value; the only door to the TOML parser.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/manifest/diagnostics.hpp"

namespace attnkit {

struct Entry;

struct Node {
  enum class Kind { table, array, text, integer, number, boolean, date };
  Kind kind = Kind::table;
  Place place;  // of the value; of a [table], its header
  std::string text;
  int64_t integer = 0;
  double number = 0;
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

constexpr size_t largest_manifest = 64 * 1024;
constexpr int deepest_manifest = 16;

// The root table.  Columns count bytes.  Text that is no TOML, no UTF-8, too large or too deep gives one diagnostic
// and an empty table.
Node parse_toml(std::string_view text, Diagnostics& diagnostics);

// A text, integer, number or boolean as a manifest would write it, on one line.
std::string toml_text(const Node& value);

// "a text", "a table", ...: for messages.
const char* kind_name(Node::Kind kind);

// Reports brackets or dotted keys that nest deeper than deepest_manifest, and is then false.  Needs no valid TOML: it
// guards the parser, which recurses.
bool check_depth(std::string_view text, Diagnostics& diagnostics);

// The place of what follows text.
Place place_after(std::string_view text);

}  // namespace attnkit
