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
  for (const char32_t c : word) {
    std::string character;
    append(character, c);
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
  const auto consider = [&](size_t at) {
    if (const Merge* merge = merge_at(at)) candidates.push({merge->rank, at, merge->id});
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
  for (size_t at = 0; at != none; at = symbols[at].after) ids.push_back(symbols[at].id);
}

}  // namespace attnkit::core
