// SentencePiece's precompiled normalisation: what each of its sequences of characters becomes, in a trie of double
// array (Kudo and Richardson 2018, arXiv:1808.06226; Aoe 1989).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.hpp"

namespace attnkit {

class Charsmap {
 public:
  // Of its text in base64.  Throws Error naming the place in the file: no base64, cut off, a trie that leads nowhere.
  explicit Charsmap(const JsonValue& base64);
  std::u32string apply(std::u32string_view text) const;

 private:
  struct Tables {
    std::vector<uint32_t> trie;
    std::string texts;  // each ends with NUL
  };
  // What the shortest sequence that the bytes begin with becomes; NULL: there is none.
  const char* find(std::string_view bytes) const;

  std::shared_ptr<const Tables> tables_;
};

}  // namespace attnkit
