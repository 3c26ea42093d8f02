#include <algorithm>

#include "core/manifest_toml.hpp"

namespace attnkit {
namespace {

// Follows strings and comments just well enough to know which brackets and dots are structure.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  size_t first_beyond(int limit) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
        continue;
      }
      if (c == '#') at_ = std::min(text_.find('\n', at_), text_.size() - 1);
      count(text_[at_]);
      if (depth_ > limit || dots_ >= limit) return at_;
      ++at_;
    }
    return std::string_view::npos;
  }

 private:
  void count(char c) {
    if (c == '[' || c == '{') ++depth_;
    if (c == ']' || c == '}') depth_ = std::max(0, depth_ - 1);
    if (c == '.')
      ++dots_;
    else if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos)
      dots_ = 0;
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
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0, dots_ = 0;
};

}  // namespace

Place nesting_beyond(std::string_view text, int limit) {
  const size_t at = Scanner(text).first_beyond(limit);
  if (at == std::string_view::npos) return {};
  const std::string_view before = text.substr(0, at);
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return {static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1, static_cast<int>(at - line_start) + 1};
}

}  // namespace attnkit
