// How the words of a normalised text are spelled in tokens, and what the text of tokens is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace attnkit {

class Spelling {
 public:
  virtual ~Spelling() = default;
  // Text as normalise left it; appends its ids.
  virtual void spell(std::u32string_view text, std::vector<int32_t>& ids) const = 0;
  virtual std::u32string normalise(std::u32string_view text) const = 0;
  // The text of tokens that are no special ones.
  virtual std::string join(const std::vector<std::string_view>& tokens) const = 0;
};

// Ids by token.
struct TokenHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
using TokenIds = std::unordered_map<std::string, int32_t, TokenHash, std::equal_to<>>;

}  // namespace attnkit
