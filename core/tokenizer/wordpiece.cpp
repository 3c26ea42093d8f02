#include "core/tokenizer/wordpiece.hpp"

#include <algorithm>

#include "core/tokenizer/unicode.hpp"

namespace attnkit::core {

WordPiece::WordPiece(const TokenIds& vocabulary, int32_t unknown, const std::string& inside, size_t max_characters)
    : first_(vocabulary), unknown_(unknown), max_characters_(max_characters) {
  for (const auto& [token, id] : vocabulary) {
    longest_ = std::max(longest_, token.size());
    if (token.starts_with(inside)) inside_.emplace(token.substr(inside.size()), id);
  }
}

void WordPiece::spell(std::u32string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > max_characters_) return ids.push_back(unknown_);
  const std::string bytes = to_utf8(word);
  const std::string_view all = bytes;
  const size_t before = ids.size();
  for (size_t from = 0; from < all.size();) {
    const TokenIds& known = from == 0 ? first_ : inside_;
    size_t n = std::min(longest_, all.size() - from);
    auto found = known.end();
    for (; n > 0; --n)
      if ((found = known.find(all.substr(from, n))) != known.end()) break;
    if (found == known.end()) {  // one part that has no piece makes the whole word unknown
      ids.resize(before);
      return ids.push_back(unknown_);
    }
    ids.push_back(found->second);
    from += n;
  }
}

}  // namespace attnkit::core
