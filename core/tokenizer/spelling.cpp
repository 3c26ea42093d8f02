#include "core/tokenizer/spelling.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attnkit::core {

size_t bytes_of_character(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

std::vector<int32_t> byte_tokens(const TokenIds& vocabulary) {
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary.find(fmt::format("<0x{:02X}>", byte));
    ids.push_back(found == vocabulary.end() ? -1 : found->second);
  }
  return ids;
}

bool spell_bytes(std::string_view bytes, const std::vector<int32_t>& tokens, std::vector<int32_t>& ids) {
  const auto id_of = [&](char byte) { return tokens[static_cast<unsigned char>(byte)]; };
  if (tokens.empty() || !std::ranges::all_of(bytes, [&](char byte) { return id_of(byte) >= 0; })) return false;
  for (const char byte : bytes) ids.push_back(id_of(byte));
  return true;
}

}  // namespace attnkit::core
