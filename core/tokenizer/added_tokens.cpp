#include "core/tokenizer/added_tokens.hpp"

#include <algorithm>

#include "core/tokenizer/unicode.hpp"

namespace attnkit::core {

void AddedTokens::add(AddedToken token) {
  if (token.content.empty()) return;
  std::vector<AddedToken>& all = by_first_[token.content.front()];
  const auto shorter = std::ranges::partition_point(
      all, [&](const AddedToken& other) { return other.content.size() >= token.content.size(); });
  all.insert(shorter, std::move(token));
}

const AddedToken* AddedTokens::match(std::u32string_view text, size_t at) const {
  const auto first = by_first_.find(text[at]);
  if (first == by_first_.end()) return nullptr;
  for (const AddedToken& token : first->second)
    if (text.substr(at).starts_with(token.content)) return &token;
  return nullptr;
}

void AddedTokens::split(std::u32string_view text, const std::function<void(std::u32string_view)>& other,
                        const std::function<void(int32_t)>& token) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* found = match(text, at);
    if (!found) {
      ++at;
      continue;
    }
    size_t first = at, end = at + found->content.size();
    at = end;  // also past one that does not count, as Hugging Face does
    if (found->single_word && ((first > 0 && is_word(text[first - 1])) || (end < text.size() && is_word(text[end]))))
      continue;
    while (found->takes_left && first > done && is_white_space(text[first - 1])) --first;
    while (found->takes_right && end < text.size() && is_white_space(text[end])) ++end;
    first = std::max(first, done);
    if (first > done) other(text.substr(done, first - done));
    token(found->id);
    done = end;
    at = std::max(at, end);
  }
  if (done < text.size()) other(text.substr(done));
}

}  // namespace attnkit::core
