#include "core/base/error.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace attnkit {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Copies as much as fits in room bytes with the NUL: whole UTF-8 characters, control characters as spaces.
void copy_line(char* out, size_t room, std::string_view text) {
  size_t n = std::min(text.size(), room - 1);
  if (n < text.size()) {
    while (n > 0 && continues_character(text[n])) --n;
  }
  std::transform(text.begin(), text.begin() + n, out, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7F ? ' ' : c;
  });
  out[n] = '\0';
}

bool is_known(int32_t code) { return code >= ATTN_OK && code <= ATTN_INTERNAL; }

}  // namespace

int32_t fill_error(attn_error* err, int32_t code, const char* message, int32_t where) noexcept {
  if (err == nullptr) return code;
  if (ATTN_HAS(attn_error, err, code)) err->code = code;
  if (ATTN_HAS(attn_error, err, where)) err->where = where;
  const size_t start = offsetof(attn_error, message);
  if (err->struct_size > start) {
    const size_t room = std::min<size_t>(err->struct_size - start, sizeof(err->message));
    copy_line(err->message, room, message != nullptr ? message : "");
  }
  return code;
}

attn_error empty_error() noexcept {
  attn_error err{};
  err.struct_size = sizeof(err);
  err.where = -1;
  return err;
}

void check_plugin(int32_t code, const attn_error& err, const std::string& who) {
  if (code == ATTN_OK) return;
  // A plugin may have forgotten the NUL.
  std::string message(err.message, strnlen(err.message, sizeof(err.message)));
  std::replace_if(
      message.begin(), message.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  if (!is_known(code))
    throw Error(ATTN_INTERNAL, fmt::format("{}: returned code {}, which plugin.h does not have; report it to the "
                                           "plugin's author{}{}",
                                           who, code, message.empty() ? "" : ": ", message));
  if (message.empty()) message = fmt::format("failed with code {} and gave no reason", code);
  throw Error(code, fmt::format("{}: {}", who, message), err.where);
}

}  // namespace attnkit
