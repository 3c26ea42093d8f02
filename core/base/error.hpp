// The one exception of core, and its conversion to and from a code and an attn_error.
#pragma once

#include <attnkit/plugin.h>
#include <fmt/format.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace attnkit::core {

class Error : public std::runtime_error {
 public:
  Error(int32_t code, const std::string& message, int32_t where = -1)
      : std::runtime_error(message), code_(code), where_(where) {}
  int32_t code() const { return code_; }
  int32_t where() const { return where_; }

 private:
  int32_t code_, where_;
};

template <class... Args>
[[noreturn]] void fail(int32_t code, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format(text, std::forward<Args>(args)...));
}

// Fills err (nullable, of any struct_size) and returns code.  Messages are cut at a UTF-8 boundary.
int32_t fill_error(attn_error* err, int32_t code, const char* message, int32_t where = -1) noexcept;

// An attn_error ready to be passed to a plugin.
attn_error empty_error() noexcept;

// Throws Error for a failed plugin call; unknown codes become ATTN_INTERNAL.  `who` (the mechanism) opens the message.
void check_plugin(int32_t code, const attn_error& err, const std::string& who);

// Runs body and turns whatever it throws into a code.
template <class Body>
int32_t guard(attn_error* err, Body&& body) noexcept {
  try {
    body();
    return ATTN_OK;
  } catch (const Error& e) {
    return fill_error(err, e.code(), e.what(), e.where());
  } catch (const std::bad_alloc&) {
    return fill_error(err, ATTN_NO_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return fill_error(err, ATTN_INTERNAL, e.what());
  } catch (...) {
    return fill_error(err, ATTN_INTERNAL, "unknown exception");
  }
}

}  // namespace attnkit::core
