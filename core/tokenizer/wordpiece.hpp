// BERT's way: words between white space and punctuation, each in the longest pieces that the vocabulary has, from the
// left (Devlin et al. 2019, arXiv:1810.04805; Wu et al. 2016, arXiv:1609.08144).
#pragma once

#include "core/tokenizer/spelling.hpp"

namespace attnkit {

struct BertNormalizer {
  bool clean = true;       // control characters go, white space becomes spaces
  bool ideographs = true;  // each a word
  bool strip_accents = true, lowercase = true;
};

class WordPiece : public Spelling {
 public:
  // inside: what pieces that do not begin a word begin with.  most: characters of a word; longer ones are unknown.
  WordPiece(const TokenIds& vocabulary, int32_t unknown, const std::string& inside, size_t most,
            BertNormalizer normalizer, bool tidy);

  std::u32string normalise(std::u32string_view text) const override;
  void spell(std::u32string_view text, std::vector<int32_t>& ids) const override;
  std::string join(const std::vector<std::string_view>& tokens) const override;

 private:
  void spell_word(std::u32string_view word, std::vector<int32_t>& ids) const;

  TokenIds first_, inside_;  // the latter without its mark
  std::string mark_;
  size_t longest_ = 0;  // of the tokens, in bytes
  int32_t unknown_;
  size_t most_;
  BertNormalizer normalizer_;
  bool tidy_;  // texts: no spaces before full stops and the like
};

}  // namespace attnkit
