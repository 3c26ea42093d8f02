// The spelling of a word whose tokens have the greatest sum of scores (Kudo 2018, arXiv:1804.10959).
#pragma once

#include <optional>

#include "core/tokenizer/spelling.hpp"

namespace attnkit::core {

// The place of a piece in spelling, as SentencePiece has it: some spell nothing, and user-defined ones have a score of
// their own, so that they are chosen almost always.
enum class PieceUse { normal, none, user_defined };

class Unigram : public Spelling {
 public:
  struct Token {
    std::string text;
    double score;
    PieceUse use = PieceUse::normal;
  };
  // tokens: by id.  unknown: what stands for characters that no token has; none: a word with such is refused.  bytes:
  // they are spelled as <0x..>, where all are there.  others: of characters without a token that are these texts.
  // single: sums are rounded to single precision, which decides among equals, as in SentencePiece.
  Unigram(std::vector<Token> tokens, std::optional<int32_t> unknown, bool bytes, const TokenIds& others = {},
          bool single = false);

  // Throws Error: a character without a token.
  void spell(std::u32string_view word, std::vector<int32_t>& ids) const override;

 private:
  std::vector<Token> tokens_;
  TokenIds ids_;
  std::vector<int32_t> sorted_;  // ids by text
  std::vector<int32_t> bytes_;
  std::optional<int32_t> unknown_;
  double unknown_score_ = 0;
  bool single_;
};

}  // namespace attnkit::core
