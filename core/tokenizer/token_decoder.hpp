// Turns tokens into text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/base/json.hpp"

namespace attnkit::core {

// The parts whose concatenation is the text.
using TokenDecoder = std::function<void(std::vector<std::string>& tokens)>;

// As the `decoder` of a tokenizer.json says; absent: spaces between tokens.  Any thread may call it.  Throws Error
// naming the place in the file and what is not supported.
TokenDecoder read_token_decoder(const JsonValue& part);

}  // namespace attnkit::core
