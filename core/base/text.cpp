#include "core/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/algorithm/string/split.hpp>
#include <numeric>

namespace attnkit::core {
namespace {

constexpr size_t max_quote = 60;
constexpr size_t max_word = 64;  // longer words are no typing errors of anything, and the edit distance is quadratic

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

// C0, DEL and C1, which UTF-8 writes in two bytes.
bool is_control(std::string_view c) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(c[i]); };
  return c.size() == 1 ? at(0) < 0x20 || at(0) == 0x7f : c.size() == 2 && at(0) == 0xc2 && at(1) < 0xa0;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  return out;
}

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours, each 1.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  boost::split(parts, text, [=](char c) { return c == separator; });
  return parts;
}

std::vector<std::string> split_lines(std::string_view text) {
  constexpr std::string_view byte_order_mark = "\ufeff";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  std::vector<std::string> lines = split(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  for (std::string& line : lines)
    if (line.ends_with('\r')) line.pop_back();
  return lines;
}

size_t white_space(std::string_view text) {
  const char c = text.front();
  if (c == ' ' || (c >= '\t' && c <= '\r')) return 1;
  if (static_cast<unsigned char>(c) < 0x80) return 0;
  for (const std::string_view wide :
       {"\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007",
        "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"})
    if (text.starts_with(wide)) return wide.size();
  return 0;
}

size_t valid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const size_t n = character(text.substr(i));
    if (n == 0) break;
    i += n;
  }
  return i;
}

Shown shown(std::string_view text) noexcept {
  const size_t n = character(text);
  if (n == 0) return {"\uFFFD", 1};
  const std::string_view c = text.substr(0, n);
  return {is_control(c) ? " " : c, n};
}

std::string clean_line(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Shown next = shown(text);
    out += next.as;
    text.remove_prefix(next.bytes);
  }
  return out;
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    if (out.size() > max_quote) {
      out += "...";
      break;
    }
    const size_t n = character(text.substr(i));
    const std::string_view c = text.substr(i, std::max<size_t>(n, 1));
    i += c.size();
    if (n > 0 && !is_control(c))
      out += c;
    else if (c == "\n" || c == "\t" || c == "\r")
      out += c == "\n" ? "\\n" : c == "\t" ? "\\t" : "\\r";
    else
      for (const char byte : c) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return out + '"';
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > max_word) return {};
  const std::string wanted = lower(word);
  std::string best;
  size_t least = std::max<size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > max_word) continue;
    const std::string other = lower(candidate);
    const size_t distance = wanted.size() > 1 && other.starts_with(wanted) ? 1 : edit_distance(wanted, other);
    if (distance >= least || distance >= other.size()) continue;
    least = distance;
    best = candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string meant = nearest(word, candidates);
  return meant.empty() ? "" : fmt::format("; did you mean \"{}\"?", meant);
}

}  // namespace attnkit::core
