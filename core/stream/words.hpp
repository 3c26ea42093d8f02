// Which tokens spell which word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace attnkit::stream {

// The text of some tokens, trimmed; more tokens only append to it.
using Detokenize = std::function<std::string(std::span<const int32_t>)>;

// The tokens that spell a word, both ends included.  Two words may share one.
struct WordSpan {
  size_t first, last;
  bool operator==(const WordSpan&) const = default;
};

// Of every word, a piece between spaces, in order.  Tokens that spell nothing (specials, a lone word mark) belong to
// none.
std::vector<WordSpan> words_of(std::span<const int32_t> ids, const Detokenize& detokenize);

}  // namespace attnkit::stream
