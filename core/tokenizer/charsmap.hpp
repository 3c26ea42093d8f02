// SentencePiece's precompiled normalisation: what each of its sequences of characters becomes, in a trie of double
// array (Kudo and Richardson 2018, arXiv:1808.06226; Aoe 1989).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.hpp"
#include "core/tokenizer/kept.hpp"

namespace attnkit::core {

class Charsmap {
 public:
  // Of its text in base64.  Throws Error naming the place in the file: no base64, cut off, a trie that leads nowhere.
  // longest: of the sequences that a text begins with the longest counts, as in SentencePiece; else, as in Hugging
  // Face's tokenizers, the shortest of a short grapheme, for all of it.  kept: texts that stay as they are, with
  // longest.
  explicit Charsmap(const JsonValue& base64, bool longest = false, KeptTexts kept = {});
  std::u32string apply(std::u32string_view text) const;

 private:
  struct Tables {
    std::vector<uint32_t> trie;
    std::string texts;  // each ends with NUL
  };
  struct Match {
    const char* becomes;  // NULL: there is none
    size_t bytes;
  };
  // The sequence that the bytes begin with.
  Match find(std::string_view bytes) const;
  std::string apply_longest(std::string_view text) const;

  std::shared_ptr<const Tables> tables_;
  bool longest_;
  KeptTexts kept_;
};

}  // namespace attnkit::core
