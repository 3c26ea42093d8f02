// Characters of Unicode as the tokenizers of Hugging Face see them: their categories are those of Unicode 8.
#pragma once

#include <string>
#include <string_view>

namespace attnkit::core {

// Throws Error naming the byte that is not UTF-8.
std::u32string to_characters(std::string_view text);
std::string to_utf8(std::u32string_view characters);
void append(std::string& to, char32_t c);
// Text that is UTF-8: what was not is U+FFFD, one for each longest part that could have begun a character.
std::string only_utf8(std::string_view text);

bool is_white_space(char32_t c);
bool is_control(char32_t c);  // control, format and private use characters
bool is_punctuation(char32_t c);
bool is_mark(char32_t c);       // that takes no room of its own
bool is_combining(char32_t c);  // marks of every kind
bool is_number(char32_t c);
bool is_ideograph(char32_t c);  // the blocks of Chinese characters that BERT spells one by one
bool is_word(char32_t c);       // letters, marks, digits, connectors and joiners, as \w has them

std::u32string lower(std::u32string_view characters);  // character by character
enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::u32string normal_form(std::u32string_view characters, NormalForm form);
// Returns the end of the first character, as a reader sees it, of a text that is not empty.
size_t end_of_grapheme(std::u32string_view characters);

}  // namespace attnkit::core
