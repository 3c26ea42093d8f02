#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/tokenizer/pattern.hpp"

#include <pcre2.h>

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/spelling.hpp"
#include "core/tokenizer/unicode.hpp"

namespace attnkit::core {
namespace {

constexpr size_t max_pattern = 10000;
// PCRE2's \s has U+180E as well, which is no white space.
constexpr std::string_view white = "\\t-\\r\\x{85}\\p{Z}";

// Characters that are several in another case, as \u00df is SS: these are equal for Oniguruma, and not for PCRE2.
bool folds_to_several(char32_t c) {
  constexpr std::pair<char32_t, char32_t> ranges[] = {
      {0xdf, 0xdf},   {0x130, 0x130}, {0x149, 0x149},   {0x1f0, 0x1f0},   {0x390, 0x390},
      {0x3b0, 0x3b0}, {0x587, 0x587}, {0x1e96, 0x1e9e}, {0x1f50, 0x1ffc}, {0xfb00, 0xfb17}};
  return std::ranges::any_of(ranges, [c](const auto& range) { return c >= range.first && c <= range.second; });
}

// Whether PCRE2 has a script of this name.
bool is_script(std::string_view name) {
  const std::string pattern = fmt::format("\\p{{sc:{}}}", name);
  int error = 0;
  size_t place = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                   &error, &place, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

class Translator {
 public:
  explicit Translator(std::string_view text) : text_(text) {}

  std::string run() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\\')
        escape(false);
      else if (c == '[')
        characters();
      else if (c == '(')
        group();
      else if (c == ')')
        close();
      else if (c == '{')
        repeat();
      else if (c == '^' || c == '$')
        refuse(std::string_view(&c, 1));  // of lines for one, of the text for the other
      else if (ahead("}+"))
        refuse("}+");  // once or more for one, without going back for the other
      else
        literal();
    }
    return made_;
  }

 private:
  [[noreturn]] void refuse(std::string_view part) const {
    fail(ATTN_INVALID, "the pattern {} has {}, which is not supported", quote(text_), quote(part));
  }

  bool ahead(std::string_view part) const { return text_.substr(at_).starts_with(part); }
  void take(size_t n) {
    made_ += text_.substr(at_, n);
    at_ += n;
  }

  // One character, which counts for what stands before it where case does not count.
  void literal() {
    const size_t n = std::min(bytes_of_character(text_[at_]), text_.size() - at_);
    const std::string_view one = text_.substr(at_, n);
    if (folds_) {
      const char32_t c = to_characters(one).front();
      if (folds_to_several(c)) refuse(one);
      const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : n == 1 ? one.front() : '\0';
      // As \u00df and \ufb01 are for Oniguruma.
      for (const std::string_view pair : {"ss", "st", "ff", "fi", "fl"})
        if (before_ == pair[0] && lower == pair[1]) refuse(text_.substr(at_ - 1, 2));
      before_ = lower;
    }
    take(n);
  }

  // "{,2}" is "{0,2}", and "{2}?" is twice or not at all.
  void repeat() {
    const size_t end = text_.find('}', at_);
    const std::string_view inner = text_.substr(at_ + 1, end == std::string_view::npos ? 0 : end - at_ - 1);
    const bool upto = inner.size() > 1 && inner.front() == ',';
    const std::string_view number = upto ? inner.substr(1) : inner;
    const bool is_number = !number.empty() && std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
    before_ = '\0';
    if (is_number && !upto && text_.substr(end + 1).starts_with('?')) refuse(text_.substr(at_, end + 2 - at_));
    if (is_number && upto) {
      made_ += fmt::format("{{0,{}}}", number);
      at_ = end + 1;
    } else {
      take(1);
    }
  }

  void close() {
    if (!folding_.empty()) {
      folds_ = folding_.back();
      folding_.pop_back();
    }
    before_ = '\0';
    take(1);
  }

  void escape(bool inside) {
    before_ = '\0';
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (c == 's' || (c == 'S' && !inside)) {
      made_ += inside ? std::string(white) : fmt::format("[{}{}]", c == 'S' ? "^" : "", white);
      at_ += 2;
      return;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c == '\0' || (letter && std::string_view("dDnrtpPvf").find(c) == std::string_view::npos) ||
        (c == 'v' && !inside))
      refuse(text_.substr(at_, 2));
    if (c == 'v') {
      made_ += "\\x0b";
      at_ += 2;
      return;
    }
    if (c != 'p' && c != 'P') return take(2);
    const size_t end = text_.find('}', at_);
    if (at_ + 2 >= text_.size() || text_[at_ + 2] != '{' || end == std::string_view::npos) refuse(text_.substr(at_, 3));
    std::string_view name = text_.substr(at_ + 3, end - at_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    // By itself a script's name is, for PCRE2, of characters that are used in it as well.
    const bool script = name.find_first_of(":=") == std::string_view::npos && is_script(name);
    made_ += fmt::format("\\{}{{{}{}{}}}", c, negated ? "^" : "", script ? "sc:" : "", name);
    at_ = end + 1;
  }

  void characters() {
    before_ = '\0';
    take(ahead("[^") ? 2 : 1);
    // A class in a class adds its characters.
    for (int depth = 1; depth > 0;) {
      if (at_ >= text_.size() || ahead("[^") || ahead("[:") || ahead("&&")) refuse(text_.substr(at_, 2));
      const char c = text_[at_];
      if (c == '\\') {
        escape(true);
      } else if (c == '[') {
        ++depth;
        ++at_;
      } else if (c == ']' && --depth > 0) {
        ++at_;
      } else {
        const auto follows = [&](size_t at) {
          return at < text_.size() && static_cast<unsigned char>(text_[at]) > 127;
        };
        if (folds_ && c == '-' && (follows(at_ + 1) || (at_ > 0 && follows(at_ - 1)))) refuse("-");
        literal();
        before_ = '\0';
      }
    }
  }

  void group() {
    before_ = '\0';
    folding_.push_back(folds_);
    folds_ = folds_ || ahead("(?i:");
    if (ahead("(?") || ahead("(*")) {
      for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!"})
        if (ahead(known)) return take(known.size());
      refuse(text_.substr(at_, 4));
    }
    take(1);
  }

  std::string_view text_;
  std::string made_;
  size_t at_ = 0;
  bool folds_ = false;         // case does not count
  std::vector<bool> folding_;  // outside of the groups that are open
  char before_ = '\0';         // the letter before, where case does not count
};

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Pattern::Pattern(const std::string& text) : text_(text) {
  if (text.size() > max_pattern)
    fail(ATTN_INVALID, "a pattern has {} bytes; at most {} are supported", text.size(), max_pattern);
  const std::string translated = Translator(text).run();
  int error = 0;
  size_t place = 0;
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &place, context.get());
  if (!code) fail(ATTN_INVALID, "the pattern {} cannot be used: {}", quote(text), message_of(error));
  code_ = {code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); }};
  uint32_t empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
  if (empty) fail(ATTN_INVALID, "the pattern {} also matches no character at all, which is not supported", quote(text));
}

std::vector<Pattern::Range> Pattern::matches(std::u32string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> found(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  if (!found) throw std::bad_alloc();
  const std::string bytes = to_utf8(text);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(bytes.data());
  const size_t* ends = pcre2_get_ovector_pointer(found.get());
  std::vector<Range> all;
  size_t byte = 0, character = 0;
  const auto character_at = [&](size_t wanted) {
    for (; byte < wanted; ++byte) character += (static_cast<unsigned char>(bytes[byte]) & 0xc0u) != 0x80u;
    return character;
  };
  for (size_t from = 0; from < bytes.size(); from = ends[1]) {
    const int code_or_error =
        pcre2_match(code, subject, bytes.size(), from, from == 0 ? 0 : PCRE2_NO_UTF_CHECK, found.get(), nullptr);
    if (code_or_error == PCRE2_ERROR_NOMATCH) break;
    if (code_or_error < 0)
      fail(ATTN_INVALID, "the text cannot be split by the pattern {}: {}", quote(text_), message_of(code_or_error));
    const size_t first = character_at(ends[0]);
    all.push_back({first, character_at(ends[1])});
  }
  return all;
}

Finder read_finder(const JsonValue& pattern) {
  if (pattern["Regex"]) {
    const std::string text = pattern["Regex"].text();
    try {
      return [made = Pattern(text)](std::u32string_view in) { return made.matches(in); };
    } catch (const Error& e) {
      pattern.wrong(fmt::format("cannot be used: {}", e.what()));
    }
  }
  const std::u32string whole = to_characters(pattern["String"].text());
  if (whole.empty()) pattern["String"].wrong("is empty");
  return [whole](std::u32string_view in) {
    std::vector<Pattern::Range> found;
    for (size_t at = 0; (at = in.find(whole, at)) != std::u32string_view::npos; at += whole.size())
      found.push_back({at, at + whole.size()});
    return found;
  };
}

}  // namespace attnkit::core
