// The vocabulary that a GGUF file brings along, as a tokenizer.
#pragma once

#include <memory>
#include <string>

#include "core/tokenizer/huggingface.hpp"

namespace attnkit::core {

// The models "gpt2", with the patterns of its `tokenizer.ggml.pre`, "llama" and "t5".  What begins and ends texts is as
// the file says, unless `use` names it.  Throws Error naming the file, the key and what is not supported.
std::shared_ptr<const Tokenizer> open_gguf_vocabulary(const std::string& path, const TokenizerUse& use);

}  // namespace attnkit::core
