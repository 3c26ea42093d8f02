// The spelling of a word whose tokens have the greatest sum of scores (Kudo 2018, arXiv:1804.10959).
#pragma once

#include <optional>

#include "core/tokenizer/spelling.hpp"

namespace attnkit::core {

class Unigram : public Spelling {
 public:
  struct Token {
    std::string text;
    double score;
  };
  // tokens: by id.  unknown: what stands for characters that no token has; none: a word with such is refused.  bytes:
  // they are spelled as <0x..>, where all are there.  others: of characters without a token that are these texts.
  Unigram(std::vector<Token> tokens, std::optional<int32_t> unknown, bool bytes, const TokenIds& others = {});

  // Throws Error: a character without a token.
  void spell(std::u32string_view word, std::vector<int32_t>& ids) const override;

 private:
  std::vector<Token> tokens_;
  TokenIds ids_;
  std::vector<int32_t> sorted_;  // ids by text
  std::vector<int32_t> bytes_;
  std::optional<int32_t> unknown_;
  double unknown_score_ = 0;
};

}  // namespace attnkit::core
