#include "core/base/sha256.hpp"

#include <fmt/format.h>

namespace attnkit::core {

Digest sha256(std::span<const std::byte> bytes) {
  Sha256 all;
  all.add(bytes);
  return all.digest();
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte b : digest) text += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) { return hex(sha256(bytes)); }

}  // namespace attnkit::core
