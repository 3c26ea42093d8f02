// Splits a normalised text into words, which are then spelled one by one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/base/json.hpp"

namespace attnkit::core {

struct Piece {
  std::u32string text;
  bool first;  // a text begins with it
};
using PreTokenizer = std::function<void(std::vector<Piece>&)>;

// As the `pre_tokenizer` of a tokenizer.json says; absent: nothing is split.  Any thread may call it.  Throws Error
// naming the place in the file and what is not supported.
PreTokenizer read_pre_tokenizer(const JsonValue& part);

}  // namespace attnkit::core
