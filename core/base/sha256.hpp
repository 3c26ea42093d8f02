// SHA-256 digests, by OpenSSL, or by libmd where that is left out.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace attnkit::core {

using Digest = std::array<std::byte, 32>;

// Over bytes that are added piece by piece.  Every call throws Error (ATTN_INTERNAL) when the library refuses.
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
  std::unique_ptr<void, void (*)(void*)> context_;  // of the library
};

Digest sha256(std::span<const std::byte> bytes);

std::string hex(const Digest& digest);  // 64 lower-case digits

std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace attnkit::core
