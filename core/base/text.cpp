#include "core/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace attnkit {
namespace {

constexpr size_t longest_quote = 60;

// Bytes of the character at the front of text; 0 when it is none.
size_t character(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const size_t n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i)
    if ((at(i) & 0xc0) != 0x80) return 0;
  if (first == 0xe0 && at(1) < 0xa0) return 0;  // overlong
  if (first == 0xed && at(1) > 0x9f) return 0;  // surrogates
  if (first == 0xf0 && at(1) < 0x90) return 0;  // overlong
  if (first == 0xf4 && at(1) > 0x8f) return 0;  // beyond U+10FFFF
  return n;
}

}  // namespace

size_t valid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const size_t n = character(text.substr(i));
    if (n == 0) break;
    i += n;
  }
  return i;
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    if (out.size() > longest_quote) {
      out += "...";
      break;
    }
    const size_t n = character(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    if (n == 0 || byte < 0x20 || byte == 0x7f)
      out += byte == '\n' ? "\\n" : byte == '\t' ? "\\t" : byte == '\r' ? "\\r" : fmt::format("\\x{:02x}", byte);
    else
      out += text.substr(i, n);
    i += std::max<size_t>(n, 1);
  }
  return out + '"';
}

}  // namespace attnkit
