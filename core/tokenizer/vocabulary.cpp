#include "core/tokenizer/vocabulary.hpp"

#include <algorithm>
#include <set>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

constexpr uint64_t max_file = uint64_t{64} << 20;
constexpr size_t max_suggestible = 64;
constexpr std::string_view mark = "\u2581";

bool is_special(std::string_view token) { return token.size() > 2 && token.front() == '<' && token.back() == '>'; }

struct Word {
  size_t from;       // in the text
  size_t bytes;      // in the text
  size_t at_marked;  // where its mark stands in the marked text
};

// The text with a mark before every word and no white space.
std::string mark_words(std::string_view text, bool lowercase, std::vector<Word>& words) {
  std::string marked;
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    if (const size_t n = white_space(text.substr(i))) {
      inside = false;
      i += n;
      continue;
    }
    if (!inside) {
      words.push_back({i, 0, marked.size()});
      marked += mark;
    }
    inside = true;
    const char c = text[i++];
    marked += lowercase && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    words.back().bytes = i - words.back().from;
  }
  return marked;
}

}  // namespace

std::vector<std::string> read_lines(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path, max_file);
  return split_lines({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Vocabulary Vocabulary::open(const std::string& path, bool lowercase) {
  Vocabulary v;
  v.lowercase_ = lowercase;
  v.tokens_ = read_lines(path);
  std::set<size_t, std::greater<>> lengths;
  std::unordered_map<std::string_view, int32_t> all;
  all.reserve(v.tokens_.size());
  v.ids_.reserve(v.tokens_.size());
  for (int32_t id = 0; id < v.size(); ++id) {
    const std::string& token = v.tokens_[id];
    if (token.empty()) fail(ATTN_INVALID, "{}:{}: the line is empty; every line is one token", path, id + 1);
    if (const size_t n = valid_utf8(token); n < token.size())
      fail(ATTN_INVALID, "{}:{}:{}: is not UTF-8", path, id + 1, n + 1);
    const auto [first, fresh] = all.emplace(token, id);
    if (!fresh)
      fail(ATTN_INVALID, "{}:{}: token {} is on line {} already", path, id + 1, quote(token), first->second + 1);
    if (token == "<s>") v.begin_ = id;
    if (token == "</s>") v.end_ = id;
    if (is_special(token)) continue;
    v.ids_.emplace(token, id);
    lengths.insert(token.size());
  }
  v.lengths_.assign(lengths.begin(), lengths.end());
  if (v.begin_ < 0 || v.end_ < 0)
    fail(ATTN_INVALID, "{}: has no line {}, which every vocabulary needs", path, v.begin_ < 0 ? "<s>" : "</s>");
  return v;
}

std::vector<int32_t> Vocabulary::tokenize(std::string_view text) const {
  if (const size_t n = valid_utf8(text); n < text.size())
    fail(ATTN_INVALID, "the text is not UTF-8 at byte column {}", n + 1);
  std::vector<Word> words;
  const std::string marked = mark_words(text, lowercase_, words);
  const std::string_view view = marked;
  std::vector<int32_t> ids;
  for (size_t at = 0; at < view.size();) {
    const size_t before = at;
    for (const size_t n : lengths_) {
      if (n > view.size() - at) continue;
      const auto found = ids_.find(view.substr(at, n));
      if (found == ids_.end()) continue;
      ids.push_back(found->second);
      at += n;
      break;
    }
    if (at != before) continue;
    const auto next = std::upper_bound(words.begin(), words.end(), at,
                                       [](size_t position, const Word& w) { return position < w.at_marked; });
    const Word& word = *std::prev(next);
    fail_to_spell(text.substr(word.from, word.bytes), word.from + 1);
  }
  return ids;
}

void Vocabulary::fail_to_spell(std::string_view word, size_t column) const {
  std::vector<std::string> candidates;
  if (word.size() <= max_suggestible)
    for (const std::string& token : tokens_)
      if (token.starts_with(mark) && token.substr(mark.size()) != word) candidates.push_back(token.substr(mark.size()));
  fail(ATTN_INVALID, "the vocabulary cannot spell the word {} at byte column {}{}", quote(word), column,
       did_you_mean(word, candidates));
}

std::string Vocabulary::detokenize(const int32_t* ids, size_t n) const {
  std::string text;
  for (size_t i = 0; i < n; ++i) {
    const std::string& token = tokens_[checked(ids, i)];
    if (is_special(token)) continue;
    for (size_t from = 0; from < token.size();) {
      const size_t to = std::min(token.find(mark, from), token.size());
      text.append(token, from, to - from);
      if (to < token.size()) text += ' ';
      from = to + mark.size();
    }
  }
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

}  // namespace attnkit::core
