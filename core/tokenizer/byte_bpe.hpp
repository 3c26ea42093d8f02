// GPT-2's way, and RoBERTa's: words as bytes, of which neighbours are joined in the order of a list of merges (Radford
// et al. 2019; Sennrich et al. 2016, arXiv:1508.07909).
#pragma once

#include "core/tokenizer/spelling.hpp"

namespace attnkit {

class ByteBpe : public Spelling {
 public:
  // merges: pairs of tokens, the first to be joined first.  prefix_space: a text begins with a space.  Throws Error: a
  // byte, a part or a result of a merge that is no token.
  ByteBpe(const TokenIds& vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
          bool prefix_space);

  std::u32string normalise(std::u32string_view text) const override { return std::u32string(text); }
  void spell(std::u32string_view text, std::vector<int32_t>& ids) const override;
  std::string join(const std::vector<std::string_view>& tokens) const override;

 private:
  struct Merge {
    size_t rank;
    int32_t id;
  };
  const Merge* find(int32_t left, int32_t right) const;
  void spell_word(std::string_view word, std::vector<int32_t>& ids) const;

  int32_t bytes_[256];
  std::unordered_map<uint64_t, Merge> merges_;  // by the two ids
  bool prefix_space_;
};

}  // namespace attnkit
