// Tokenizers as Hugging Face describes them: a tokenizer.json, or BERT's vocab.txt.
#pragma once

#include <memory>
#include <string>

#include "core/tokenizer/tokenizer.hpp"

namespace attnkit {

// most: ids of a text with its beginning and end; what exceeds them is left out, as `truncation` does there, whose own
// settings in the file do not count.  Both throw Error naming the file and what is wrong or not supported in it.
std::shared_ptr<const Tokenizer> open_tokenizer_json(const std::string& path, size_t most);

// One token per line, [CLS], [SEP] and [UNK] among them.  lowercase: accents go as well.
std::shared_ptr<const Tokenizer> open_wordpiece(const std::string& path, bool lowercase, size_t most);

}  // namespace attnkit
