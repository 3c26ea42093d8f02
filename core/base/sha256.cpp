#include "core/base/sha256.hpp"

#include <openssl/evp.h>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

void check(bool done) {
  if (!done) fail(ATTN_INTERNAL, "OpenSSL cannot compute SHA-256");
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  check(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::add(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

Digest Sha256::digest() {
  Digest digest{};
  unsigned int n = 0;
  check(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), &n) == 1 &&
        n == digest.size());
  return digest;
}

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
