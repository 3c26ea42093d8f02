#include <fmt/format.h>

#include <algorithm>

#include "core/manifest/codes.hpp"
#include "core/manifest/toml.hpp"

namespace attnkit {
namespace {

// Follows strings and comments just well enough to know which brackets and dots are structure.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  // Where it becomes too deep, else the end of the text.
  size_t scan() {
    while (at_ < text_.size() && depth_ <= deepest_manifest && dots_ < deepest_manifest) {
      const char c = text_[at_];
      if (c == '"' || c == '\'')
        skip_string(c);
      else if (c == '#')
        at_ = std::min(text_.find('\n', at_), text_.size());
      else
        count(c);
    }
    return at_;
  }

 private:
  void count(char c) {
    if (c == '[' || c == '{') ++depth_;
    if (c == ']' || c == '}') depth_ = std::max(0, depth_ - 1);
    if (c == '.') ++dots_;
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) dots_ = 0;
    if (depth_ <= deepest_manifest && dots_ < deepest_manifest) ++at_;
  }

  void skip_string(char quote) {
    const std::string triple(3, quote);
    const bool multiline = text_.substr(at_).starts_with(triple);
    const std::string_view end = multiline ? std::string_view(triple) : std::string_view(triple).substr(0, 1);
    at_ += end.size();
    while (at_ < text_.size() && !text_.substr(at_).starts_with(end)) {
      if (text_[at_] == '\n' && !multiline) return;  // unfinished: the parser will say so
      at_ += quote == '"' && text_[at_] == '\\' ? 2 : 1;
    }
    at_ = std::min(at_ + end.size(), text_.size());
    // Up to two quotes may stand before the three that end the string.
    for (int i = 0; multiline && i < 2 && at_ < text_.size() && text_[at_] == quote; ++i) ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0, dots_ = 0;
};

}  // namespace

bool check_depth(std::string_view text, Diagnostics& diagnostics) {
  const size_t at = Scanner(text).scan();
  if (at == text.size()) return true;
  diagnostics.error(ak::too_deep, place_after(text.substr(0, at)),
                    fmt::format("nested deeper than {} levels", deepest_manifest));
  return false;
}

Place place_after(std::string_view text) {
  const size_t line_start = text.rfind('\n') + 1;  // npos + 1 is 0
  return {static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 1,
          static_cast<int>(text.size() - line_start) + 1};
}

}  // namespace attnkit
