// A reader of a file that may be cut off or damaged: parts of its bytes, in order or by their places.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.hpp"

namespace attnkit::core {

class ByteReader {
 public:
  // Both must outlive it.
  ByteReader(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  template <class... Args>
  [[noreturn]] void broken(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ATTN_INVALID, "{}: {}", path_, fmt::format(text, std::forward<Args>(args)...));
  }

  const std::span<const std::byte>& bytes() const { return bytes_; }
  uint64_t at() const { return at_; }
  uint64_t left(uint64_t at) const { return at < bytes_.size() ? bytes_.size() - at : 0; }
  uint64_t left() const { return left(at_); }

  std::span<const std::byte> part(uint64_t at, uint64_t n) const {
    if (at > bytes_.size() || n > left(at))
      broken("needs {} bytes at byte {}, {} are left: the file is cut off", n, at, left(at));
    return bytes_.subspan(at, n);
  }
  std::span<const std::byte> take(uint64_t n) {
    const std::span<const std::byte> taken = part(at_, n);
    at_ += n;
    return taken;
  }

  template <class T>
  T number(uint64_t at) const {
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, part(at, sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  T number() {
    const T value = number<T>(at_);
    at_ += sizeof value;
    return value;
  }

  std::string_view text(uint64_t at, uint64_t n) const { return text_of(part(at, n)); }
  std::string_view text(uint64_t n) { return text_of(take(n)); }

  static std::string_view text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
  uint64_t at_ = 0;
};

}  // namespace attnkit::core
