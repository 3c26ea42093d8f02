// BERT's way: words in the longest pieces that the vocabulary has, from the left (Devlin et al. 2019, arXiv:1810.04805;
// Wu et al. 2016, arXiv:1609.08144).
#pragma once

#include "core/tokenizer/spelling.hpp"

namespace attnkit::core {

class WordPiece : public Spelling {
 public:
  // inside: what pieces that do not begin a word begin with.  max_characters: of a word; longer ones are unknown.
  WordPiece(const TokenIds& vocabulary, int32_t unknown, const std::string& inside, size_t max_characters);

  void spell(std::u32string_view word, std::vector<int32_t>& ids) const override;

 private:
  TokenIds first_, inside_;  // the latter without its mark
  size_t longest_ = 0;       // of the tokens, in bytes
  int32_t unknown_;
  size_t max_characters_;
};

}  // namespace attnkit::core
