#include "core/base/formats/toml_depth.hpp"

#include <algorithm>
#include <string>

namespace attnkit::core {
namespace {

// Follows strings and comments just well enough to know which brackets and dots are structure.  Needs no valid TOML: it
// guards the parser, which recurses.
struct DepthScanner {
  std::string_view text;
  size_t at = 0;
  int depth = 0, dots = 0;

  // Returns where brackets or dotted keys nest too deep, else the end of the text.
  size_t scan() {
    while (at < text.size() && depth <= max_toml_depth && dots < max_toml_depth) {
      const char c = text[at];
      if (c == '"' || c == '\'')
        skip_string(c);
      else if (c == '#')
        at = std::min(text.find('\n', at), text.size());
      else
        count(c);
    }
    return at;
  }

  void count(char c) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') depth = std::max(0, depth - 1);
    if (c == '.') ++dots;
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) dots = 0;
    if (depth <= max_toml_depth && dots < max_toml_depth) ++at;
  }

  void skip_string(char quote) {
    const std::string triple(3, quote);
    const bool multiline = text.substr(at).starts_with(triple);
    const std::string_view end = multiline ? std::string_view(triple) : std::string_view(triple).substr(0, 1);
    at += end.size();
    while (at < text.size() && !text.substr(at).starts_with(end)) {
      if (text[at] == '\n' && !multiline) return;  // unfinished: the parser will say so
      at += quote == '"' && text[at] == '\\' ? 2 : 1;
    }
    at = std::min(at + end.size(), text.size());
    // Up to two quotes may stand before the three that end the string.
    for (int i = 0; multiline && i < 2 && at < text.size() && text[at] == quote; ++i) ++at;
  }
};

}  // namespace

size_t shallow_part(std::string_view text) { return DepthScanner{text}.scan(); }

}  // namespace attnkit::core
