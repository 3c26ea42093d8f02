// A tokenizer whose tokens have other ids in a model, as Marian's and M2M100's have those of a vocab.json.
#pragma once

#include <memory>

#include "core/tokenizer/huggingface.hpp"

namespace attnkit::core {

// Tokens and their ids: an object of JSON, an array by id, or YAML where the name ends in .yml or .yaml.  Throws Error
// naming the file.
nlohmann::json read_ids(const std::string& path);

// own: SentencePiece's, whose texts end with any token.  Tokens that ids, of read_ids, lacks are its <unk>.  A text may
// begin with a token such as >>fra<< of ids.  Throws Error naming the file and what is wrong.
std::shared_ptr<const Tokenizer> renumbered(std::shared_ptr<const Tokenizer> own, const JsonValue& ids,
                                            const TokenizerUse& use);

}  // namespace attnkit::core
