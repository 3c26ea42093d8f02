#include "core/tokenizer/wordpiece.hpp"

#include <algorithm>

#include "core/tokenizer/unicode.hpp"

namespace attnkit {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

bool stays(char32_t c) { return c != 0 && c != 0xfffd && !is_control(c); }

bool is_space_to_clean(char32_t c) {
  return c == '\t' || c == '\n' || c == '\r' || (!is_control(c) && is_white_space(c));
}

}  // namespace

WordPiece::WordPiece(const TokenIds& vocabulary, int32_t unknown, const std::string& inside, size_t most,
                     BertNormalizer normalizer, bool tidy)
    : first_(vocabulary), mark_(inside), unknown_(unknown), most_(most), normalizer_(normalizer), tidy_(tidy) {
  for (const auto& [token, id] : vocabulary) {
    longest_ = std::max(longest_, token.size());
    if (token.starts_with(inside)) inside_.emplace(token.substr(inside.size()), id);
  }
}

std::u32string WordPiece::normalise(std::u32string_view text) const {
  std::u32string made;
  made.reserve(text.size());
  for (const char32_t c : text) {
    const bool space = normalizer_.clean && is_space_to_clean(c);
    if (normalizer_.clean && !space && !stays(c)) continue;
    if (normalizer_.ideographs && is_ideograph(c))
      made.append({U' ', c, U' '});
    else
      made += space ? U' ' : c;
  }
  if (normalizer_.strip_accents) {
    made = decomposed(made);
    std::erase_if(made, is_mark);
  }
  return normalizer_.lowercase ? lower(made) : made;
}

void WordPiece::spell(std::u32string_view text, std::vector<int32_t>& ids) const {
  size_t first = 0;
  for (size_t at = 0; at <= text.size(); ++at) {
    const bool space = at == text.size() || is_white_space(text[at]);
    const bool alone = !space && is_punctuation(text[at]);
    if (!space && !alone) continue;
    if (at > first) spell_word(text.substr(first, at - first), ids);
    if (alone) spell_word(text.substr(at, 1), ids);
    first = at + 1;
  }
}

void WordPiece::spell_word(std::u32string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > most_) return ids.push_back(unknown_);
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

std::string WordPiece::join(const std::vector<std::string_view>& tokens) const {
  constexpr std::pair<const char*, const char*> tidying[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string part(tokens[i]);
    if (i > 0) {
      if (part.starts_with(mark_))
        part.erase(0, mark_.size());
      else
        part.insert(0, " ");
    }
    for (const auto& [from, to] : tidying)
      if (tidy_) replace_all(part, from, to);
    text += part;
  }
  return text;
}

}  // namespace attnkit
