// Regular expressions of tokenizer files.  They are Oniguruma's; PCRE2 matches them, and what the two read differently
// is translated or refused.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.hpp"

namespace attnkit::core {

// Immutable: any thread.
class Pattern {
 public:
  // Throws Error (ATTN_INVALID): no regular expression, one that also matches nothing at all, or a part of it that is
  // not supported.
  explicit Pattern(const std::string& text);

  struct Range {
    size_t from, to;
  };
  // Returns the matches from the left, without overlaps.  Throws Error: the search takes too many steps.
  std::vector<Range> matches(std::u32string_view text) const;

 private:
  std::string text_;
  std::shared_ptr<const void> code_;
};

// The matches of {"Regex": ...} or {"String": ...}, the latter as it is.  Throws Error naming the place in the file.
using Finder = std::function<std::vector<Pattern::Range>(std::u32string_view)>;
Finder read_finder(const JsonValue& pattern);

}  // namespace attnkit::core
