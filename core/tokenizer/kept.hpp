// Texts that are never taken apart: the user-defined pieces of SentencePiece.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/base/json.hpp"
#include "core/tokenizer/spelling.hpp"

namespace attnkit::core {

class KeptTexts {
 public:
  KeptTexts() = default;
  // Of an array, which may be absent.
  explicit KeptTexts(const JsonValue& texts) {
    if (!texts) return;
    for (const JsonValue& text : texts.items())
      if (texts_.insert(text.text()).second) lengths_.push_back(text.text().size());
    std::ranges::sort(lengths_, std::greater());
    lengths_.erase(std::unique(lengths_.begin(), lengths_.end()), lengths_.end());
  }

  // Bytes of the longest one that this begins with; 0: of none.
  size_t at(std::string_view text) const {
    for (const size_t n : lengths_)
      if (n > 0 && n <= text.size() && texts_.contains(text.substr(0, n))) return n;
    return 0;
  }
  bool contains(std::string_view text) const { return texts_.contains(text); }

 private:
  std::unordered_set<std::string, TokenHash, std::equal_to<>> texts_;
  std::vector<size_t> lengths_;  // the longest first
};

}  // namespace attnkit::core
