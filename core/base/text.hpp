// Text from outside made safe for messages: UTF-8 validity, and quotes around names that may hold anything.
#pragma once

#include <string>
#include <string_view>

namespace attnkit {

// Length in bytes of the longest prefix that is valid UTF-8 (no overlong forms, no surrogates); text.size() when all
// is.
size_t valid_utf8(std::string_view text);

// The text in double quotes, on one line: control characters escaped, invalid bytes as \xNN, cut with "..." after about
// 60 bytes.
std::string quote(std::string_view text);

}  // namespace attnkit
