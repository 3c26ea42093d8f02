#include "core/tokenizer/charsmap.hpp"

#include <cstring>

#include "core/base/text.hpp"
#include "core/tokenizer/base64.hpp"
#include "core/tokenizer/unicode.hpp"

namespace attnkit::core {
namespace {

// Longer ones are looked up character by character, as Hugging Face does.
constexpr size_t max_grapheme = 5;

std::string read_bytes(const JsonValue& value) {
  const std::string text = value.text();
  std::optional<std::string> bytes;
  if (!text.empty() && text.size() <= size_t{1} << 28) bytes = from_base64(text);
  if (!bytes) value.wrong("is no base64");
  return *bytes;
}

// A unit of the trie.
struct Unit {
  uint32_t bits;
  size_t offset() const { return size_t{bits >> 10} << ((bits & 1u << 9) >> 6); }
  uint32_t label() const { return bits & (1u << 31 | 0xffu); }
  bool has_value() const { return (bits >> 8 & 1u) != 0; }
  size_t value() const { return bits & ~(1u << 31); }
};

}  // namespace

Charsmap::Charsmap(const JsonValue& base64, bool longest, KeptTexts kept) : longest_(longest), kept_(std::move(kept)) {
  const std::string bytes = read_bytes(base64);
  uint32_t size = 0;
  if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
  if (bytes.size() < sizeof size || size > bytes.size() - sizeof size || size == 0 || size % sizeof(uint32_t) != 0)
    base64.wrong("is cut off");
  auto made = std::make_shared<Tables>();
  made->trie.resize(size / sizeof(uint32_t));
  std::memcpy(made->trie.data(), bytes.data() + sizeof size, size);
  made->texts = bytes.substr(sizeof size + size);
  if (valid_utf8(made->texts) < made->texts.size()) base64.wrong("has texts that are no UTF-8");
  tables_ = std::move(made);
}

Charsmap::Match Charsmap::find(std::string_view bytes) const {
  const auto unit = [&](size_t at) { return Unit{at < tables_->trie.size() ? tables_->trie[at] : 0}; };
  Match found{nullptr, 0};
  size_t at = unit(0).offset();
  for (size_t n = 0; n < bytes.size() && bytes[n] != '\0'; ++n) {
    const auto byte = static_cast<unsigned char>(bytes[n]);
    at ^= byte;
    const Unit here = unit(at);
    if (here.label() != byte) break;
    at ^= here.offset();
    if (!here.has_value()) continue;
    const size_t text = unit(at).value();
    found = {text < tables_->texts.size() ? tables_->texts.c_str() + text : nullptr, n + 1};
    if (!longest_) break;
  }
  return found;
}

std::string Charsmap::apply_longest(std::string_view text) const {
  std::string made;
  while (!text.empty()) {
    if (const size_t kept = kept_.at(text)) {
      made += text.substr(0, kept);
      text.remove_prefix(kept);
      continue;
    }
    const Match found = find(text);
    // Of a character that nothing begins with, its first byte and those that follow it.
    size_t n = found.becomes ? found.bytes : 1;
    while (!found.becomes && n < text.size() && (static_cast<unsigned char>(text[n]) & 0xc0u) == 0x80u) ++n;
    made += found.becomes ? std::string_view(found.becomes) : text.substr(0, n);
    text.remove_prefix(n);
  }
  return made;
}

std::u32string Charsmap::apply(std::u32string_view text) const {
  if (longest_) return to_characters(apply_longest(to_utf8(text)));
  std::string made;
  while (!text.empty()) {
    const size_t n = end_of_grapheme(text);
    const std::string bytes = to_utf8(text.substr(0, n));
    const char* whole = bytes.size() <= max_grapheme ? find(bytes).becomes : nullptr;
    if (whole) made += whole;
    for (size_t i = 0; i < n && !whole; ++i) {
      std::string character;
      append(character, text[i]);
      const char* becomes = find(character).becomes;
      made += becomes ? becomes : character;
    }
    text.remove_prefix(n);
  }
  return to_characters(made);
}

}  // namespace attnkit::core
