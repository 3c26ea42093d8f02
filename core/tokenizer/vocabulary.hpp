// Tokens of one side of a model: greedy longest match with U+2581 at word starts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/tokenizer/tokenizer.hpp"

namespace attnkit::core {

// The lines of a text file, without the byte order mark and without line ends of either kind.  Throws Error as
// read_file does.
std::vector<std::string> read_lines(const std::string& path);

// File: UTF-8, one token per line, id = line number from 0.  Must hold <s> and </s>; <pad> is optional.
class Vocabulary : public Tokenizer {
 public:
  // Throws Error naming the file and line: unreadable, empty or duplicate token, invalid UTF-8, missing <s> or </s>.
  static Vocabulary open(const std::string& path, bool lowercase);

  // White space collapses to one U+2581, one stands before the text; then the longest token that matches, from the
  // left. Throws Error naming the word that cannot be spelled, its place in the text and the nearest token.
  std::vector<int32_t> tokenize(std::string_view text) const override;
  // Concatenation with U+2581 as spaces, trimmed; <...> specials are left out.  Throws Error: an id outside.
  std::string detokenize(const int32_t* ids, size_t n) const override;

  int size() const override { return static_cast<int>(tokens_.size()); }
  int32_t begin_id() const override { return begin_; }
  int32_t end_id() const override { return end_; }
  const std::string& token(int32_t id) const override { return tokens_.at(id); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  [[noreturn]] void fail_to_spell(std::string_view word, size_t column) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;  // specials left out: text never spells them
  std::vector<size_t> lengths_;  // of the tokens in ids_, in bytes, longest first
  int32_t begin_ = -1, end_ = -1;
  bool lowercase_ = false;
};

}  // namespace attnkit::core
