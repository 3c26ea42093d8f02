// SHA-256 digests, by OpenSSL.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace attnkit {

// 64 lower-case hexadecimal digits.  Throws Error (ATTN_INTERNAL): OpenSSL refuses.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace attnkit
