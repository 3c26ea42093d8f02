#include "core/base/error.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

// Copies as much as fits in room bytes with the NUL: whole UTF-8 characters, as one line.
void copy_line(char* out, size_t room, std::string_view text) noexcept {
  for (Shown next; !text.empty(); text.remove_prefix(next.bytes)) {
    next = shown(text);
    if (next.as.size() >= room) break;
    out = std::copy(next.as.begin(), next.as.end(), out);
    room -= next.as.size();
  }
  *out = '\0';
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
  attn_error err;
  explicit_bzero(&err, sizeof err);  // of memset the compiler makes "rep stos", slow for so few bytes
  err.struct_size = sizeof(err);
  err.where = -1;
  return err;
}

void check_plugin(int32_t code, const attn_error& err, const std::string& who) {
  if (code == ATTN_OK) return;
  // A plugin may have forgotten the NUL.
  const std::string message = clean_line({err.message, strnlen(err.message, sizeof(err.message))});
  if (!is_known(code))
    throw Error(ATTN_INTERNAL, fmt::format("{}: returned code {}, which plugin.h does not have; report it to the "
                                           "plugin's author{}{}",
                                           who, code, message.empty() ? "" : ": ", message));
  if (message.empty())
    throw Error(code, fmt::format("{}: failed with code {} and gave no reason", who, code), err.where);
  throw Error(code, fmt::format("{}: {}", who, message), err.where);
}

}  // namespace attnkit::core
