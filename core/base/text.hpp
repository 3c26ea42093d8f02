// Text from outside: its parts and numbers; in messages UTF-8 validity, quotes around names that may hold anything,
// suggestions for typing errors.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attnkit::core {

// Returns the parts between separators: one more than there are of these.
std::vector<std::string> split(std::string_view text, char separator);

// Returns the lines of a file without a byte order mark and without line ends (LF or CR LF); a last line may lack its
// own.
std::vector<std::string> split_lines(std::string_view text);

// Returns the number that the whole text is, if it is one.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

// Returns the bytes of the white space of Unicode that UTF-8 text begins with; 0 when it begins with something else.
size_t white_space(std::string_view text);

// Returns the bytes of the longest prefix that is valid UTF-8 (no overlong forms, no surrogates).
size_t valid_utf8(std::string_view text);

// The front of a text, not empty, as a terminal may be given it: as it is, a control character as a space, a
// byte that is no UTF-8 as U+FFFD.
struct Shown {
  std::string_view as;
  size_t bytes;  // of the text
};
Shown shown(std::string_view text) noexcept;
// Returns a whole text so.
std::string clean_line(std::string_view text);

// Returns the text in double quotes, on one line: control characters escaped, invalid bytes as \xNN, cut with "..."
// after about 60 bytes.
std::string quote(std::string_view text);

// Returns the candidate that was probably meant: it begins with word, or the edit distance is at most a third of word's
// length. Empty: none.  Letter case does not count.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// Returns "; did you mean "x"?", or an empty string.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace attnkit::core
