// Byte-pair encoding: a word's characters, of which neighbours are joined in the order of a list of merges (Sennrich et
// al. 2016, arXiv:1508.07909).
#pragma once

#include <optional>
#include <unordered_set>

#include "core/tokenizer/kept.hpp"
#include "core/tokenizer/spelling.hpp"

namespace attnkit::core {

struct BpeOptions {
  std::optional<int32_t> unknown;           // of characters without a token; none: they are left out
  bool join_unknown = false;                // one for several in a row
  bool bytes = false;                       // characters without a token are spelled as <0x..>, where all are there
  bool whole_words = false;                 // a word that is a token is that token, whatever the merges
  KeptTexts kept = {};                      // tokens that stand for themselves, wherever they are
  std::unordered_set<int32_t> unused = {};  // are taken apart again once all is joined, as in SentencePiece
};

class Bpe : public Spelling {
 public:
  // merges: pairs of tokens, the first to be joined first.  Throws Error: a part or a result of a merge that is no
  // token.
  Bpe(TokenIds vocabulary, const std::vector<std::pair<std::string, std::string>>& merges, const BpeOptions& options);

  void spell(std::u32string_view word, std::vector<int32_t>& ids) const override;

 private:
  struct Merge {
    size_t rank;
    int32_t id;
  };
  const Merge* find(int32_t left, int32_t right) const;
  std::vector<int32_t> characters(std::u32string_view word) const;
  using Parts = std::unordered_map<int32_t, std::pair<int32_t, int32_t>>;  // of what was joined last, by what it made
  std::vector<int32_t> used(const std::vector<int32_t>& joined, const Parts& parts) const;

  TokenIds vocabulary_;
  BpeOptions options_;
  std::vector<int32_t> bytes_;
  std::unordered_map<uint64_t, Merge> merges_;      // by the two ids
  std::unordered_map<int32_t, std::string> texts_;  // of unused tokens
};

}  // namespace attnkit::core
