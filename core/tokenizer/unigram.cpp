#include "core/tokenizer/unigram.hpp"

#include <algorithm>
#include <limits>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/unicode.hpp"

namespace attnkit::core {
namespace {

constexpr double unknown_penalty = 10;       // below the worst token, as in SentencePiece
constexpr float user_defined_score = -0.1F;  // as there

}  // namespace

Unigram::Unigram(std::vector<Token> tokens, std::optional<int32_t> unknown, bool bytes, const TokenIds& others,
                 bool single)
    : tokens_(std::move(tokens)), unknown_(unknown), single_(single) {
  unknown_score_ = std::numeric_limits<double>::infinity();
  for (size_t id = 0; id < tokens_.size(); ++id) {
    ids_[tokens_[id].text] = static_cast<int32_t>(id);
    if (tokens_[id].use == PieceUse::normal) unknown_score_ = std::min(unknown_score_, tokens_[id].score);
    if (tokens_[id].use == PieceUse::user_defined) tokens_[id].score = user_defined_score;
  }
  unknown_score_ -= unknown_penalty;
  for (const auto& [text, id] : ids_)
    if (!text.empty() && tokens_[static_cast<size_t>(id)].use != PieceUse::none) sorted_.push_back(id);
  std::ranges::sort(sorted_, {},
                    [&](int32_t id) -> const std::string& { return tokens_[static_cast<size_t>(id)].text; });
  if (bytes) bytes_ = byte_tokens(ids_);
  ids_.insert(others.begin(), others.end());
}

void Unigram::spell(std::u32string_view word, std::vector<int32_t>& ids) const {
  struct Best {
    double score = 0;
    size_t from = std::string::npos;
    int32_t id = -1;  // -1: unknown
  };
  const std::string text = to_utf8(word);
  std::vector<Best> best(text.size() + 1);  // by where its last token ends
  const auto rounded = [this](double sum) { return single_ ? double{static_cast<float>(sum)} : sum; };
  const auto offer = [&](size_t from, size_t to, int32_t id, double score) {
    score += best[from].score;
    score = rounded(score);
    if (best[to].from == std::string::npos || score > best[to].score) best[to] = {score, from, id};
  };
  const auto text_of = [&](int32_t id) -> std::string_view { return tokens_[static_cast<size_t>(id)].text; };
  for (size_t from = 0; from < text.size();) {
    const size_t character = bytes_of_character(text[from]);
    bool known = false;
    // The tokens that begin as the text does here are a range, which narrows byte by byte.
    auto first = sorted_.begin(), last = sorted_.end();
    for (size_t n = 0; first != last && from + n < text.size(); ++n) {
      const int byte = static_cast<unsigned char>(text[from + n]);
      const auto byte_of = [&](int32_t id) {
        return text_of(id).size() > n ? static_cast<unsigned char>(text_of(id)[n]) : -1;
      };
      first = std::partition_point(first, last, [&](int32_t id) { return byte_of(id) < byte; });
      last = std::partition_point(first, last, [&](int32_t id) { return byte_of(id) == byte; });
      if (first == last || text_of(*first).size() != n + 1) continue;
      offer(from, from + n + 1, *first, tokens_[static_cast<size_t>(*first)].score);
      known = known || n + 1 == character;
    }
    if (!known) offer(from, from + character, -1, unknown_score_);
    from += character;
  }
  struct Part {
    size_t from, to;
    int32_t id;
  };
  std::vector<Part> parts;  // from the last
  for (size_t to = text.size(); to > 0; to = best[to].from) {
    const Best& here = best[to];
    const int32_t id = here.id == unknown_.value_or(-1) ? -1 : here.id;
    if (id < 0 && !parts.empty() && parts.back().id < 0)
      parts.back().from = here.from;
    else
      parts.push_back({here.from, to, id});
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const std::string_view spelled = std::string_view(text).substr(part->from, part->to - part->from);
    auto whole = part->id < 0 ? ids_.find(spelled) : ids_.end();
    if (whole != ids_.end() && static_cast<size_t>(whole->second) < tokens_.size() &&
        tokens_[static_cast<size_t>(whole->second)].use == PieceUse::none)
      whole = ids_.end();
    if (part->id >= 0)
      ids.push_back(part->id);
    else if (whole != ids_.end())
      ids.push_back(whole->second);
    else if (!spell_bytes(spelled, bytes_, ids)) {
      if (!unknown_) fail(ATTN_INVALID, "the vocabulary cannot spell {}, and has no unknown token", quote(spelled));
      ids.push_back(*unknown_);
    }
  }
}

}  // namespace attnkit::core
