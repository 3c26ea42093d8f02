// SHA-256 digests, by OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace attnkit::core {

using Digest = std::array<std::byte, 32>;

// Over bytes that are added piece by piece.  Every call throws Error (ATTN_INTERNAL) when OpenSSL refuses.
class Sha256 {
 public:
  Sha256();
  void add(std::span<const std::byte> bytes);
  template <class T>
  void add_numbers(std::span<const T> numbers) {
    add(std::as_bytes(numbers));
  }
  Digest digest();  // once, at the end

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

Digest sha256(std::span<const std::byte> bytes);

std::string hex(const Digest& digest);  // 64 lower-case digits

std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace attnkit::core
