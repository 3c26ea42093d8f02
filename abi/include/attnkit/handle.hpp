// What the classes of attnkit.hpp are made of: failures as exceptions, handles that free themselves.
#ifndef ATTNKIT_HANDLE_HPP
#define ATTNKIT_HANDLE_HPP
#include <attnkit/attnkit.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

// cpp1 keeps these classes apart from those inside the library, whatever a program links.
namespace attnkit::inline cpp1 {

using Ids = std::vector<int32_t>;
enum class Side : uint32_t { source = 0, target = 1 };

// One problem of a manifest or of what it names; see attnkit_diagnostic.
struct Diagnostic {
  uint32_t severity = 0, area = 0;
  int32_t code = 0, line = 0, column = 0;
  std::string message, help;
  bool is_error() const { return severity == ATTNKIT_ERROR; }
};

class Error : public std::runtime_error {
 public:
  Error(int32_t code, const std::string& message, int32_t where = -1, std::vector<Diagnostic> diagnostics = {})
      : std::runtime_error(message), code_(code), where_(where), diagnostics_(std::move(diagnostics)) {}
  int32_t code() const { return code_; }    // ATTN_INVALID, ...
  int32_t where() const { return where_; }  // index of the option or port at fault, or -1
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }  // of a manifest, sorted by place

 private:
  int32_t code_, where_;
  std::vector<Diagnostic> diagnostics_;
};

namespace detail {

// Calls f(args..., &err).
template <class F, class... Args>
void call(F f, Args... args) {
  attn_error err{sizeof err, ATTN_OK, -1, ""};
  if (const int32_t code = f(args..., &err); code != ATTN_OK) throw Error(code, err.message, err.where);
}

inline const char* c_str(const std::string& text) {
  if (text.find('\0') != std::string::npos) throw Error(ATTN_INVALID, "the text holds a NUL byte");
  return text.c_str();
}

template <class T, auto destroy>
class Handle {
 public:
  T* get() const { return owner_.get(); }
  // Takes what f(args..., &handle, &err) makes.
  template <class F, class... Args>
  void make(F f, Args... args) {
    T* made = nullptr;
    call(f, args..., &made);
    owner_.reset(made);
  }

 private:
  std::unique_ptr<T, void (*)(T*)> owner_{nullptr, destroy};
};

// The document of f(args..., &text, &err).
template <class F, class... Args>
std::string text_of(F f, Args... args) {
  Handle<attnkit_text, attnkit_text_destroy> text;
  text.make(f, args...);
  uint64_t bytes = 0;
  const char* data = attnkit_text_data(text.get(), &bytes);
  return {data, static_cast<size_t>(bytes)};
}

}  // namespace detail

}  // namespace attnkit::inline cpp1
#endif
