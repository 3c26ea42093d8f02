// The keys that a manifest may have: types, bounds and defaults in one table, read by the checks and the documentation.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attnkit::core {

enum class KeyType {
  text,
  integer,
  number,
  boolean,
  factor,
  choice,
  set,
  table,
  tables,
  use,
  uses,
  layers,
  integers,
  numbers,
  tokens,
  texts,
  bytes,
  time
};

struct KeyRule {
  const char* table;  // path of the table the key stands in; "" is the root
  const char* key;
  KeyType type;
  const char* fallback;     // as one would write it; "": none; NULL: the key is required
  double min = 0, max = 0;  // integer, number, integers: inclusive
  const char* choices =
      "";  // of a choice: "a|b"; of a set words for whole sets, then what an array may hold: "a|b;c|d"
  const char* meaning;

  constexpr KeyRule(const char* table, const char* key, KeyType type, const char* fallback, const char* meaning)
      : table(table), key(key), type(type), fallback(fallback), meaning(meaning) {}
  constexpr KeyRule(const char* table, const char* key, KeyType type, const char* fallback, double min, double max,
                    const char* meaning)
      : table(table), key(key), type(type), fallback(fallback), min(min), max(max), meaning(meaning) {}
  constexpr KeyRule(const char* table, const char* key, KeyType type, const char* fallback, const char* choices,
                    const char* meaning)
      : table(table), key(key), type(type), fallback(fallback), choices(choices), meaning(meaning) {}
};

std::span<const KeyRule> manifest_keys();

// The rules of one table, in the order of the documentation.
std::vector<const KeyRule*> rules_of(std::string_view table);

// "an integer from 1 to 64", "one of "pre", "post"": for messages and the documentation.
std::string type_text(const KeyRule& rule);

// "a" and "b" of "a|b", or of "a|b;c|d".
std::vector<std::string> choices_of(const KeyRule& rule);
// "c" and "d" of "a|b;c|d".
std::vector<std::string> members_of(const KeyRule& rule);

}  // namespace attnkit::core
