#include "core/tokenizer/byte_bpe.hpp"

#include <algorithm>
#include <queue>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/unicode.hpp"

namespace attnkit {
namespace {

// The character that stands for a byte in tokens: itself where it can be seen, else one from U+0100.
char32_t letter_of(int byte) {
  const auto seen = [](int b) { return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae; };
  if (seen(byte)) return static_cast<char32_t>(byte);
  char32_t next = 0x100;
  for (int b = 0; b < byte; ++b) next += !seen(b);
  return next;
}

// Where the next word of the text ends, by the pattern of GPT-2:
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t end_of_word(std::u32string_view text) {
  for (const std::u32string_view ending : {U"'s", U"'t", U"'re", U"'ve", U"'m", U"'ll", U"'d"})
    if (text.starts_with(ending)) return ending.size();
  const size_t first = text[0] == U' ' && text.size() > 1 ? 1 : 0;
  const auto run = [&](auto&& belongs) {
    size_t at = first;
    while (at < text.size() && belongs(text[at])) ++at;
    return at > first ? at : 0;
  };
  if (const size_t letters = run(is_letter)) return letters;
  if (const size_t numbers = run(is_number)) return numbers;
  const auto is_other = [](char32_t c) { return !is_white_space(c) && !is_letter(c) && !is_number(c); };
  if (const size_t others = run(is_other)) return others;
  size_t spaces = 0;
  while (spaces < text.size() && is_white_space(text[spaces])) ++spaces;
  // The last space before a word belongs to that word, or stands alone.
  return spaces < text.size() && spaces > 1 ? spaces - 1 : spaces;
}

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

ByteBpe::ByteBpe(const TokenIds& vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
                 bool prefix_space)
    : prefix_space_(prefix_space) {
  const auto id_of = [&](const std::string& token) {
    const auto found = vocabulary.find(token);
    if (found == vocabulary.end()) fail(ATTN_INVALID, "the vocabulary lacks the token {}", quote(token));
    return found->second;
  };
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    append(letter, letter_of(byte));
    bytes_[byte] = id_of(letter);
  }
  for (const auto& [left, right] : merges) {
    const Merge merge{merges_.size(), id_of(left + right)};
    merges_.emplace(key_of(id_of(left), id_of(right)), merge);
  }
}

const ByteBpe::Merge* ByteBpe::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void ByteBpe::spell(std::u32string_view text, std::vector<int32_t>& ids) const {
  std::u32string begun;
  if (prefix_space_ && !text.starts_with(U' ')) {
    begun = U" " + std::u32string(text);
    text = begun;
  }
  while (!text.empty()) {
    const size_t n = end_of_word(text);
    spell_word(to_utf8(text.substr(0, n)), ids);
    text.remove_prefix(n);
  }
}

void ByteBpe::spell_word(std::string_view word, std::vector<int32_t>& ids) const {
  struct Symbol {
    int32_t id;
    size_t before, after;
  };
  struct Candidate {
    size_t rank, at;
    int32_t left, right;  // ids when it was found; others by now: it is over
    bool operator<(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  const size_t none = word.size();
  std::vector<Symbol> symbols;
  for (size_t i = 0; i < word.size(); ++i)
    symbols.push_back({bytes_[static_cast<unsigned char>(word[i])], i == 0 ? none : i - 1, i + 1});
  std::priority_queue<Candidate> candidates;
  const auto consider = [&](size_t at) {
    if (at == none || symbols[at].after == none) return;
    const int32_t left = symbols[at].id, right = symbols[symbols[at].after].id;
    if (const Merge* merge = find(left, right)) candidates.push({merge->rank, at, left, right});
  };
  for (size_t i = 0; i < symbols.size(); ++i) consider(i);
  for (; !candidates.empty();) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbols[best.at];
    if (left.id != best.left || left.after == none || symbols[left.after].id != best.right) continue;
    Symbol& right = symbols[left.after];
    left.id = find(best.left, best.right)->id;
    right.id = -1;
    left.after = right.after;
    if (left.after != none) symbols[left.after].before = best.at;
    consider(left.before);
    consider(best.at);
  }
  for (size_t at = 0; at != none; at = symbols[at].after) ids.push_back(symbols[at].id);
}

std::string ByteBpe::join(const std::vector<std::string_view>& tokens) const {
  std::unordered_map<char32_t, char> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes[letter_of(byte)] = static_cast<char>(byte);
  std::string text;
  for (const std::string_view token : tokens) {
    std::string part;
    for (const char32_t c : to_characters(token)) {
      const auto byte = bytes.find(c);
      if (byte == bytes.end()) {  // an added token is what it is
        part = token;
        break;
      }
      part += byte->second;
    }
    text += part;
  }
  return only_utf8(text);
}

}  // namespace attnkit
