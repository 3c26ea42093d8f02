#include "core/tokenizer/bpe.hpp"

#include <queue>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/unicode.hpp"

namespace attnkit::core {
namespace {

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Bpe::Bpe(TokenIds vocabulary, const std::vector<std::pair<std::string, std::string>>& merges, const BpeOptions& options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  const auto id_of = [&](const std::string& token) {
    const auto found = vocabulary_.find(token);
    if (found == vocabulary_.end()) fail(ATTN_INVALID, "the vocabulary lacks the token {}", quote(token));
    return found->second;
  };
  if (options.bytes) bytes_ = byte_tokens(vocabulary_);
  for (const auto& [token, id] : vocabulary_)
    if (options.unused.contains(id)) texts_.emplace(id, token);
  merges_.reserve(merges.size());
  size_t rank = 0;
  for (const auto& [left, right] : merges) {
    // In this order, so that every compiler's message names the same token.
    const int32_t joined = id_of(left + right), second = id_of(right), first = id_of(left);
    merges_.insert_or_assign(key_of(first, second), Merge{rank++, joined});
  }
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<int32_t> Bpe::characters(std::u32string_view word) const {
  std::vector<int32_t> ids;
  bool unknown = false;  // the last one is
  const std::string text = to_utf8(word);
  for (size_t at = 0, n = 0; at < text.size(); at += n) {
    const std::string_view rest = std::string_view(text).substr(at);
    n = options_.kept.at(rest);
    if (n == 0) n = bytes_of_character(rest.front());
    const std::string_view character = rest.substr(0, n);
    const auto found = vocabulary_.find(character);
    const bool known = found != vocabulary_.end();
    if (known) ids.push_back(found->second);
    if (known || spell_bytes(character, bytes_, ids)) {
      unknown = false;
    } else if (options_.unknown && !(unknown && options_.join_unknown)) {
      ids.push_back(*options_.unknown);
      unknown = true;
    }
  }
  return ids;
}

// Tokens in place of those that are not used: what they were joined of, as far as that is used.
std::vector<int32_t> Bpe::used(const std::vector<int32_t>& joined, const Parts& parts) const {
  std::vector<int32_t> ids, left(joined.rbegin(), joined.rend());
  while (!left.empty()) {
    const int32_t id = left.back();
    left.pop_back();
    const auto of = parts.find(id);
    if (!options_.unused.contains(id)) {
      if (id != options_.unknown || ids.empty() || ids.back() != id) ids.push_back(id);
    } else if (of != parts.end()) {
      left.insert(left.end(), {of->second.second, of->second.first});
    } else if (!spell_bytes(texts_.at(id), bytes_, ids) && options_.unknown &&
               (ids.empty() || ids.back() != *options_.unknown)) {
      ids.push_back(*options_.unknown);
    }
  }
  return ids;
}

void Bpe::spell(std::u32string_view word, std::vector<int32_t>& ids) const {
  if (options_.whole_words) {
    const auto found = vocabulary_.find(to_utf8(word));
    if (found != vocabulary_.end()) return ids.push_back(found->second);
  }
  struct Symbol {
    int32_t id;
    size_t before, after;
  };
  struct Candidate {
    size_t rank, at;
    int32_t id;  // that it makes; where its neighbours make another by now it is over
    bool operator<(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  const std::vector<int32_t> begun = characters(word);
  const size_t none = begun.size();
  std::vector<Symbol> symbols;
  symbols.reserve(none);
  for (size_t i = 0; i < none; ++i) symbols.push_back({begun[i], i == 0 ? none : i - 1, i + 1});
  std::priority_queue<Candidate> candidates;
  const auto merge_at = [&](size_t at) -> const Merge* {
    if (at == none || symbols[at].id < 0 || symbols[at].after == none) return nullptr;
    return find(symbols[at].id, symbols[symbols[at].after].id);
  };
  Parts parts;
  const auto consider = [&](size_t at) {
    const Merge* const merge = merge_at(at);
    if (!merge) return;
    candidates.push({merge->rank, at, merge->id});
    if (options_.unused.contains(merge->id)) parts[merge->id] = {symbols[at].id, symbols[symbols[at].after].id};
  };
  for (size_t i = 0; i < symbols.size(); ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const Merge* merge = merge_at(best.at);
    if (!merge || merge->id != best.id) continue;
    Symbol& left = symbols[best.at];
    Symbol& right = symbols[left.after];
    left.id = best.id;
    right.id = -1;
    left.after = right.after;
    if (left.after != none) symbols[left.after].before = best.at;
    consider(left.before);
    consider(best.at);
  }
  std::vector<int32_t> joined;
  for (size_t at = 0; at != none; at = symbols[at].after) joined.push_back(symbols[at].id);
  if (!options_.unused.empty()) joined = used(joined, parts);
  ids.insert(ids.end(), joined.begin(), joined.end());
}

}  // namespace attnkit::core
