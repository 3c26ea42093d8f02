// SHA-256 without OpenSSL, by libmd.
#include "core/base/sha256.hpp"

#include <sha2.h>

namespace attnkit::core {
namespace {

SHA2_CTX* context(void* of) { return static_cast<SHA2_CTX*>(of); }

}  // namespace

Sha256::Sha256() : context_(new SHA2_CTX, [](void* of) { delete context(of); }) { SHA256Init(context(context_.get())); }

void Sha256::add(std::span<const std::byte> bytes) {
  SHA256Update(context(context_.get()), reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

Digest Sha256::digest() {
  Digest digest{};
  SHA256Final(reinterpret_cast<uint8_t*>(digest.data()), context(context_.get()));
  return digest;
}

}  // namespace attnkit::core
