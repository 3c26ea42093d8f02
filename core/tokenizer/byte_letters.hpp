// Bytes as characters that can be seen, the way GPT-2's vocabularies write them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace attnkit::core {

// Itself where it can be seen, else one from U+0100.
char32_t letter_of_byte(unsigned char byte);
std::optional<unsigned char> byte_of_letter(char32_t letter);

// Every byte of the UTF-8 text as its letter.
std::u32string to_letters(std::string_view text);

}  // namespace attnkit::core
