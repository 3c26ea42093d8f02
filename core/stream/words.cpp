#include "core/stream/words.hpp"

#include <algorithm>
#include <string_view>

namespace attnkit::stream {
namespace {

// Of token i, which appended `grown` to a text that ends inside of a word unless it is empty.  Did a word begin?
bool add(std::vector<WordSpan>& words, size_t i, std::string_view grown, bool inside) {
  bool begun = false;
  for (const char c : grown) {
    const bool before = inside;
    inside = c != ' ';
    if (!inside) continue;
    if (!before) words.push_back({i, i});
    words.back().last = i;
    begun = begun || !before;
  }
  return begun;
}

}  // namespace

std::vector<WordSpan> words_of(std::span<const int32_t> ids, const Detokenize& detokenize) {
  std::vector<WordSpan> words;
  size_t from = 0;    // the token that began the last word: what stands before it no longer matters
  std::string known;  // the text from there on
  for (size_t i = 0; i < ids.size(); ++i) {
    std::string text = detokenize(ids.subspan(from, i + 1 - from));
    const std::string_view grown = std::string_view(text).substr(std::min(known.size(), text.size()));
    if (add(words, i, grown, !known.empty())) {
      from = i;
      text = detokenize(ids.subspan(from, 1));
    }
    known = std::move(text);
  }
  return words;
}

}  // namespace attnkit::stream
