// Bytes as characters that can be seen, the way GPT-2's vocabularies write them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace attnkit::core {

// Every byte of the UTF-8 text as its letter: itself where it can be seen, else one from U+0100.
std::u32string to_letters(std::string_view text);
std::optional<unsigned char> byte_of_letter(char32_t letter);

}  // namespace attnkit::core
