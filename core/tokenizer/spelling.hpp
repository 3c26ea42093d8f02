// Spells a word in tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace attnkit::core {

// Immutable: any thread.
class Spelling {
 public:
  virtual ~Spelling() = default;
  // Appends the ids of a word that is not empty.
  virtual void spell(std::u32string_view word, std::vector<int32_t>& ids) const = 0;
};

// Ids by token.
struct TokenHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
using TokenIds = std::unordered_map<std::string, int32_t, TokenHash, std::equal_to<>>;

// Of one of UTF-8, by its first byte.
size_t bytes_of_character(char first);

// The ids of <0x00> to <0xFF>, which spell what has no token of its own; -1: there is none.
std::vector<int32_t> byte_tokens(const TokenIds& vocabulary);
// Appends the bytes' tokens; false, and nothing appended: one is missing.
bool spell_bytes(std::string_view bytes, const std::vector<int32_t>& tokens, std::vector<int32_t>& ids);

}  // namespace attnkit::core
