// The keys a manifest may have: types, bounds and defaults in one table, which the checks and the documentation read.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attnkit {

enum class KeyType {
  text,
  integer,
  number,
  boolean,
  choice,
  table,
  tables,
  use,
  uses,
  layers,
  integers,
  bytes,
  duration
};

struct KeyRule {
  const char* table;  // path of the table the key stands in; "" is the root
  const char* key;
  KeyType type;
  bool required;
  const char* fallback;  // as one would write it; "" = none
  double min, max;       // integer, number, integers: inclusive, when min < max
  const char* choices;   // choice: "a|b"
  const char* meaning;
};

std::span<const KeyRule> manifest_keys();

// The rules of one table, in the order of the documentation.
std::vector<const KeyRule*> rules_of(std::string_view table);

// "an integer from 1 to 64", "one of "pre", "post"": for messages and the documentation.
std::string type_text(const KeyRule& rule);

// The parts of a rule's choices.
std::vector<std::string> choices_of(const KeyRule& rule);

}  // namespace attnkit
