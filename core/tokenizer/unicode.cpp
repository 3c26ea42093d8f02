#include "core/tokenizer/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

struct Range {
  char32_t first, last;
};

// Punctuation, marks and format characters that came after Unicode 8, or became such: not so in the tables that the
// tokenizers of Hugging Face have.  tests/core/tokenizer/make_golden.py --newer lists them.
constexpr Range newer[] = {
    {0x61D, 0x61D},     {0x7FD, 0x7FD},     {0x890, 0x891},     {0x898, 0x89F},     {0x8CA, 0x8E2},
    {0x9FD, 0x9FE},     {0xA76, 0xA76},     {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC04},
    {0xC3C, 0xC3C},     {0xC77, 0xC77},     {0xC84, 0xC84},     {0xD00, 0xD00},     {0xD3B, 0xD3C},
    {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x180F, 0x180F},   {0x1885, 0x1886},
    {0x1ABF, 0x1ACE},   {0x1B7D, 0x1B7E},   {0x1DF6, 0x1DFB},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},
    {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAD}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F55, 0x10F59}, {0x10F82, 0x10F89},
    {0x11070, 0x11070}, {0x11073, 0x11074}, {0x110C2, 0x110C2}, {0x110CD, 0x110CD}, {0x111C9, 0x111C9},
    {0x111CF, 0x111CF}, {0x1123E, 0x1123E}, {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x11438, 0x1143F},
    {0x11442, 0x11444}, {0x11446, 0x11446}, {0x1144B, 0x1144F}, {0x1145A, 0x1145B}, {0x1145D, 0x1145E},
    {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1182F, 0x11837}, {0x11839, 0x1183B}, {0x1193B, 0x1193C},
    {0x1193E, 0x1193E}, {0x11943, 0x11946}, {0x119D4, 0x119D7}, {0x119DA, 0x119DB}, {0x119E0, 0x119E0},
    {0x119E2, 0x119E2}, {0x11A01, 0x11A0A}, {0x11A33, 0x11A38}, {0x11A3B, 0x11A47}, {0x11A51, 0x11A56},
    {0x11A59, 0x11A5B}, {0x11A8A, 0x11A96}, {0x11A98, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09},
    {0x11C30, 0x11C36}, {0x11C38, 0x11C3D}, {0x11C3F, 0x11C3F}, {0x11C41, 0x11C45}, {0x11C70, 0x11C71},
    {0x11C92, 0x11CA7}, {0x11CAA, 0x11CB0}, {0x11CB2, 0x11CB3}, {0x11CB5, 0x11CB6}, {0x11D31, 0x11D36},
    {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45}, {0x11D47, 0x11D47}, {0x11D90, 0x11D91},
    {0x11D95, 0x11D95}, {0x11D97, 0x11D97}, {0x11EF3, 0x11EF4}, {0x11EF7, 0x11EF8}, {0x11F00, 0x11F01},
    {0x11F36, 0x11F3A}, {0x11F40, 0x11F40}, {0x11F42, 0x11F4F}, {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2},
    {0x13430, 0x13440}, {0x13447, 0x13455}, {0x16E97, 0x16E9A}, {0x16F4F, 0x16F4F}, {0x16FE2, 0x16FE2},
    {0x16FE4, 0x16FE4}, {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46}, {0x1E000, 0x1E006}, {0x1E008, 0x1E018},
    {0x1E01B, 0x1E021}, {0x1E023, 0x1E024}, {0x1E026, 0x1E02A}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E944, 0x1E94A}, {0x1E95E, 0x1E95F},
};

// Marks, and characters that a normal form replaces, which came after Unicode 9: their normal forms leave these alone.
// tests/core/tokenizer/make_golden.py --newer lists them as well.
constexpr Range newer_forms[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xAFA, 0xAFF},
    {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},     {0xCF3, 0xCF3},     {0xD00, 0xD00},
    {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},
    {0x180F, 0x180F},   {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},
    {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11073, 0x11074}, {0x110C2, 0x110C2},
    {0x11145, 0x11146}, {0x111C9, 0x111C9}, {0x111CE, 0x111CF}, {0x11241, 0x11241}, {0x1133B, 0x1133B},
    {0x1145E, 0x1145E}, {0x1182C, 0x1183A}, {0x11930, 0x11935}, {0x11937, 0x11938}, {0x1193B, 0x1193E},
    {0x11940, 0x11940}, {0x11942, 0x11943}, {0x119D1, 0x119D7}, {0x119DA, 0x119E0}, {0x119E4, 0x119E4},
    {0x11A01, 0x11A0A}, {0x11A33, 0x11A39}, {0x11A3B, 0x11A3E}, {0x11A47, 0x11A47}, {0x11A51, 0x11A5B},
    {0x11A8A, 0x11A99}, {0x11D31, 0x11D36}, {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45},
    {0x11D47, 0x11D47}, {0x11D8A, 0x11D8E}, {0x11D90, 0x11D91}, {0x11D93, 0x11D97}, {0x11EF3, 0x11EF6},
    {0x11F00, 0x11F01}, {0x11F03, 0x11F03}, {0x11F34, 0x11F3A}, {0x11F3E, 0x11F42}, {0x13440, 0x13440},
    {0x13447, 0x13455}, {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE4, 0x16FE4}, {0x16FF0, 0x16FF1},
    {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

template <size_t N>
bool is_in(const Range (&ranges)[N], char32_t c) {
  if (c < ranges[0].first) return false;
  const auto* at =
      std::upper_bound(std::begin(ranges), std::end(ranges), c, [](char32_t x, const Range& r) { return x < r.first; });
  return c <= std::prev(at)->last;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

}  // namespace

std::u32string to_characters(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (auto left = static_cast<utf8proc_ssize_t>(text.size()); left > 0;) {
    utf8proc_int32_t c = *at;
    const utf8proc_ssize_t n = c < 0x80 ? 1 : utf8proc_iterate(at, left, &c);
    if (n < 1)
      fail(ATTN_INVALID, "the text is not UTF-8 at byte column {}", text.size() - static_cast<size_t>(left) + 1);
    characters += static_cast<char32_t>(c);
    at += n;
    left -= n;
  }
  return characters;
}

void append(std::string& to, char32_t c) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  to.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

std::string to_utf8(std::u32string_view characters) {
  std::string text;
  for (const char32_t c : characters) append(text, c);
  return text;
}

std::string only_utf8(std::string_view text) {
  std::string made;
  for (;;) {
    const size_t n = valid_utf8(text);
    made += text.substr(0, n);
    text.remove_prefix(n);
    if (text.empty()) return made;
    // A byte that cannot begin a character counts alone, else all that fits the beginning of one.
    size_t bad = 1;
    for (; bad < text.size() && bad < 4; ++bad) {
      std::string whole(text.substr(0, bad + 1));
      bool begins = false;
      for (const char* end : {"", "\x80", "\xbf", "\x80\x80", "\xbf\xbf"}) begins |= valid_utf8(whole + end) > 0;
      if (!begins) break;
    }
    append(made, 0xfffd);
    text.remove_prefix(bad);
  }
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  const utf8proc_category_t k = category(c);
  return c == 0x85 || k == UTF8PROC_CATEGORY_ZS || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

bool is_control(char32_t c) {
  if (c < 0x80) return c < ' ' || c == 0x7f;
  const utf8proc_category_t k = category(c);
  return (k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO) && !is_in(newer, c);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 0x7f);
  if (c == 0x166d || c == 0x111c9) return true;  // until Unicode 8
  const utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO && !is_in(newer, c);
}

bool is_mark(char32_t c) {
  return c == 0x1734 ||
         (c >= 0x300 && category(c) == UTF8PROC_CATEGORY_MN && !is_in(newer, c));  // the former until then
}

bool is_combining(char32_t c) {
  if (c < 0x300) return false;
  const utf8proc_category_t k = category(c);
  const bool mark = k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
  return (mark && !is_in(newer_forms, c)) || c == 0x1cf2 || c == 0x1cf3;  // the last two until Unicode 11
}

bool is_ideograph(char32_t c) {
  // Hugging Face's ranges: the fifth ends and the sixth begins otherwise than in Unicode.
  constexpr Range ranges[] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},  {0x20000, 0x2a6df},
                              {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};
  return c >= 0x3400 && std::ranges::any_of(ranges, [&](const Range& r) { return c >= r.first && c <= r.last; });
}

bool is_word(char32_t c) {
  constexpr Range letters[] = {{0x200c, 0x200d},  // that join
                               {0x24b6, 0x24e9},  // in circles and squares
                               {0x1f130, 0x1f149},
                               {0x1f150, 0x1f169},
                               {0x1f170, 0x1f189}};
  const utf8proc_category_t k = category(c);
  return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC || is_in(letters, c);
}

static char32_t to_lower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

std::u32string lower(std::u32string_view characters) {
  std::u32string made;
  made.reserve(characters.size());
  for (const char32_t c : characters) {
    made += to_lower(c == 0x130 ? U'i' : c);
    if (c == 0x130) made += 0x307;  // the one letter whose small form is two characters
  }
  return made;
}

using Characters = std::vector<utf8proc_int32_t>;

// Puts the marks behind each character in their order, for which utf8proc takes the square of their number.
static void order(Characters& characters) {
  const auto rank = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto at = characters.begin(); at != characters.end();) {
    const auto end = std::find_if(at, characters.end(), [&](utf8proc_int32_t c) { return rank(c) == 0; });
    if (!std::is_sorted(at, end, [&](auto a, auto b) { return rank(a) < rank(b); }))
      std::stable_sort(at, end, [&](auto a, auto b) { return rank(a) < rank(b); });
    at = std::find_if(end, characters.end(), [&](utf8proc_int32_t c) { return rank(c) > 0; });
  }
}

static void append_normal(std::u32string& to, const Characters& characters, int options) {
  const auto chosen = static_cast<utf8proc_option_t>(options);
  Characters made;
  for (const utf8proc_int32_t c : characters) {
    utf8proc_int32_t parts[32];  // the longest that Unicode has are 18
    int boundary = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(c, parts, std::ssize(parts), chosen, &boundary);
    if (n < 0) fail(ATTN_INVALID, "the text cannot be normalised: {}", utf8proc_errmsg(n));
    made.insert(made.end(), parts, parts + n);
  }
  order(made);
  const utf8proc_ssize_t n = utf8proc_normalize_utf32(made.data(), std::ssize(made), chosen);
  to.append(made.begin(), made.begin() + n);
}

std::u32string normal_form(std::u32string_view characters, NormalForm form) {
  // Below U+00A0 nothing changes in any form.
  if (std::ranges::all_of(characters, [](char32_t c) { return c < 0xa0; })) return std::u32string(characters);
  const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const int options =
      UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0);
  std::u32string made;
  Characters open;
  for (const char32_t c : characters) {
    if (!is_in(newer_forms, c)) {
      open.push_back(static_cast<utf8proc_int32_t>(c));
      continue;
    }
    // It stays as it is, and nothing moves across it.
    append_normal(made, std::exchange(open, {}), options);
    made += c;
  }
  append_normal(made, open, options);
  return made;
}

size_t end_of_grapheme(std::u32string_view characters) {
  utf8proc_int32_t state = 0;
  size_t end = 1;
  while (end < characters.size() &&
         !utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(characters[end - 1]),
                                           static_cast<utf8proc_int32_t>(characters[end]), &state))
    ++end;
  return end;
}

}  // namespace attnkit::core
