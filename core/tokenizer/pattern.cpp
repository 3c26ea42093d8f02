#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/tokenizer/pattern.hpp"

#include <pcre2.h>

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/unicode.hpp"

namespace attnkit::core {
namespace {

constexpr size_t max_pattern = 10000;
// PCRE2's \s has U+180E as well, which is no white space.
constexpr std::string_view white = "\\t-\\r\\x{85}\\p{Z}";

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
      else if (c == '^' || c == '$')
        refuse(std::string_view(&c, 1));  // of lines for one, of the text for the other
      else if (ahead("}+"))
        refuse("}+");  // once or more for one, without going back for the other
      else
        take(1);
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

  void escape(bool inside) {
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
    const bool property = (c == 'p' || c == 'P') && at_ + 2 < text_.size() && text_[at_ + 2] == '{';
    const size_t end = property ? text_.find('}', at_) : at_ + 1;
    take(std::min(end, text_.size() - 1) - at_ + 1);
  }

  void characters() {
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
        take(1);
      }
    }
  }

  void group() {
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
