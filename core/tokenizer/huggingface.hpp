// Tokenizers as Hugging Face describes them: a tokenizer.json, or BERT's vocab.txt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/json.hpp"
#include "core/tokenizer/tokenizer.hpp"

namespace attnkit::core {

struct TokenizerUse {
  // Ids of a source with its beginning and end; what exceeds them is left out, as `truncation` does there, whose own
  // settings in the file do not count.
  size_t max_ids = SIZE_MAX;
  // Of a decoder: texts have no frame; what would stand before them is begin_id(), one token or none.
  bool target = false;
  // Tokens that begin and end every text; empty: as the file frames texts.
  std::string begin, end;
  bool ends = true;  // false: the file may be without the token that ends texts
  // Of SentencePiece's files: a JSON file of ids by token, and what has ids behind them; empty: the file's own ids.
  std::string ids;
  std::vector<std::string> more = {};
  bool fairseq = false;  // in place of `ids`: <s>, <pad>, </s> and <unk>, then the file's from its fourth on
  int size = 0;          // ids that there are at least; those without a token are no text
};

// All throw Error naming the file and what is wrong or not supported in it.
std::shared_ptr<const Tokenizer> open_tokenizer_json(const std::string& path, const TokenizerUse& use);
// The values of a tokenizer.json that were made of another file.
std::shared_ptr<const Tokenizer> read_tokenizer_json(const JsonValue& document, const TokenizerUse& use);

// One token per line, [CLS], [SEP] and [UNK] among them.  lowercase: accents go as well.
std::shared_ptr<const Tokenizer> open_wordpiece(const std::string& path, bool lowercase, const TokenizerUse& use);

}  // namespace attnkit::core
