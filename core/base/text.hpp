// Text from outside in messages: UTF-8 validity, quotes around names that may hold anything, suggestions for typing
// errors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attnkit {

// Returns the bytes of the longest prefix that is valid UTF-8 (no overlong forms, no surrogates).
size_t valid_utf8(std::string_view text);

// Returns the text in double quotes, on one line: control characters escaped, invalid bytes as \xNN, cut with "..."
// after about 60 bytes.
std::string quote(std::string_view text);

// Returns the candidate that was probably meant: it begins with word, or the edit distance is at most a third of word's
// length. Empty: none.  Letter case does not count.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// Returns "; did you mean "x"?", or an empty string.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace attnkit
