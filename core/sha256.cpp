#include "core/sha256.hpp"

#include <openssl/evp.h>

#include <array>

#include "core/error.hpp"

namespace attnkit {

std::string sha256_hex(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int n = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &n, EVP_sha256(), nullptr) != 1 || n != 32)
    fail(ATTN_INTERNAL, "OpenSSL cannot compute SHA-256");
  std::string hex;
  for (unsigned int i = 0; i < n; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace attnkit
