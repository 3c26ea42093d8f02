// SHA-256 by OpenSSL.
#include <openssl/evp.h>

#include "core/base/error.hpp"
#include "core/base/sha256.hpp"

namespace attnkit::core {
namespace {

EVP_MD_CTX* context(void* of) { return static_cast<EVP_MD_CTX*>(of); }

void check(bool done) {
  if (!done) fail(ATTN_INTERNAL, "OpenSSL cannot compute SHA-256");
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), [](void* of) { EVP_MD_CTX_free(context(of)); }) {
  if (!context_) throw std::bad_alloc();
  check(EVP_DigestInit_ex(context(context_.get()), EVP_sha256(), nullptr) == 1);
}

void Sha256::add(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(context(context_.get()), bytes.data(), bytes.size()) == 1);
}

Digest Sha256::digest() {
  Digest digest{};
  unsigned int n = 0;
  check(EVP_DigestFinal_ex(context(context_.get()), reinterpret_cast<unsigned char*>(digest.data()), &n) == 1 &&
        n == digest.size());
  return digest;
}

}  // namespace attnkit::core
