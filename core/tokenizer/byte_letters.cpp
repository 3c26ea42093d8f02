#include "core/tokenizer/byte_letters.hpp"

#include <array>

namespace attnkit::core {
namespace {

constexpr char32_t first_other = 0x100;

constexpr bool can_be_seen(unsigned b) { return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae; }

constexpr std::array<char32_t, 256> letters = [] {
  std::array<char32_t, 256> all{};
  char32_t next = first_other;
  for (unsigned b = 0; b < all.size(); ++b) all[b] = can_be_seen(b) ? static_cast<char32_t>(b) : next++;
  return all;
}();

}  // namespace

std::optional<unsigned char> byte_of_letter(char32_t letter) {
  if (letter < first_other)
    return can_be_seen(letter) ? std::optional(static_cast<unsigned char>(letter)) : std::nullopt;
  for (unsigned b = 0; b < letters.size(); ++b)
    if (letters[b] == letter) return static_cast<unsigned char>(b);
  return {};
}

std::u32string to_letters(std::string_view text) {
  std::u32string made;
  made.reserve(text.size());
  for (const char c : text) made += letters[static_cast<unsigned char>(c)];
  return made;
}

}  // namespace attnkit::core
