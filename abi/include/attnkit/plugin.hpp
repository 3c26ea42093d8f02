// Turns a C++ struct that is mostly mathematics into the C table of plugin.h; header only, no part of the ABI.
//
// A mechanism is a struct T with
//   static constexpr attnkit::About about;                    who it is
//   static attnkit::Options options();                        the schema of its options, {} for none
//   T(const attn_block&, const attnkit::Values&, attnkit::Ports&);       fixes options, lists ports; may throw Refusal
//   struct Plan;                                              whatever run needs beside the request
//   Plan plan(const attn_request&, attn_info&) const;         fills info (which arrives zeroed); may throw Refusal
//   void run(const Plan&, const attn_run&) const;             throws before its first write or not at all
//   void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const;    only with LEARNED or TABLE ports
// and one line ATTNKIT_PLUGIN(T).  Every exception becomes a code; std::bad_alloc becomes ATTN_NO_MEMORY.  Before T
// sees a request or a run it was checked against the contract: bounds, flags, shapes, strides, scratch, state.
#ifndef ATTNKIT_PLUGIN_HPP
#define ATTNKIT_PLUGIN_HPP
#include <attnkit/plugin.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace attnkit {

// One line of text from pieces: text, integers, doubles.
template <class... Piece>
std::string say(const Piece&... pieces) {
  std::string line;
  auto append = [&line](const auto& piece) {
    using P = std::decay_t<decltype(piece)>;
    char number[32];
    if constexpr (std::is_floating_point_v<P>) {
      std::snprintf(number, sizeof number, "%g", static_cast<double>(piece));
      line += number;
    } else if constexpr (std::is_integral_v<P>) {
      line += std::to_string(piece);
    } else {
      line += piece;
    }
  };
  (append(pieces), ...);
  return line;
}

// What a mechanism throws to refuse.  where: the option (in create) or the port (in run) at fault, or -1.
class Refusal : public std::exception {
 public:
  Refusal(int32_t code, std::string message, int32_t where = -1)
      : code_(code), where_(where), message_(std::move(message)) {}
  int32_t code() const noexcept { return code_; }
  int32_t where() const noexcept { return where_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  int32_t code_, where_;
  std::string message_;
};

template <class... Piece>
Refusal unsupported(const Piece&... pieces) {
  return Refusal(ATTN_UNSUPPORTED, say(pieces...));
}
template <class... Piece>
Refusal invalid(const Piece&... pieces) {
  return Refusal(ATTN_INVALID, say(pieces...));
}

// Rows of a tensor: (b, h, i) of a sequence, (i) of a matrix, () of a vector.
template <class T>
struct View {
  T* data = nullptr;
  int64_t batch = 0, head = 0, next = 0;

  View() = default;
  explicit View(const attn_tensor& t) : data(static_cast<T*>(t.data)) {
    if (t.ndim >= 2) next = t.stride[t.ndim - 2];
    if (t.ndim >= 3) head = t.stride[t.ndim - 3];
    if (t.ndim >= 4) batch = t.stride[t.ndim - 4];
  }
  T* row(int64_t b, int64_t h, int64_t i) const { return data + (b * batch + h * head + i * next); }
  T* row(int64_t i = 0) const { return data + i * next; }
};

// Who a mechanism is; see attn_plugin.  device_type: DLPack, CPU 1, CUDA 2.
struct About {
  const char *name, *summary, *citation, *state_revision;
  int32_t device_type = 1;
  uint32_t oldest_host_minor = 0;
};

// The schema of one option; names, docs and choices are string literals.
struct Option {
  attn_option schema{};
  std::vector<const char*> choices{};

  static Option integer(const char* name, int64_t fallback, int64_t min, int64_t max, const char* doc) {
    return make(name, doc, {ATTN_INT, 0, fallback, 0, nullptr}, static_cast<double>(min), static_cast<double>(max));
  }
  static Option real(const char* name, double fallback, double min, double max, const char* doc) {
    return make(name, doc, {ATTN_FLOAT, 0, 0, fallback, nullptr}, min, max);
  }
  static Option boolean(const char* name, bool fallback, const char* doc) {
    return make(name, doc, {ATTN_BOOL, 0, fallback ? 1 : 0, 0, nullptr}, 0, 0);
  }
  static Option text(const char* name, const char* fallback, std::vector<const char*> choices, const char* doc) {
    Option option = make(name, doc, {ATTN_TEXT, 0, 0, 0, fallback}, 0, 0);
    option.choices = std::move(choices);
    return option;
  }

 private:
  static Option make(const char* name, const char* doc, attn_value fallback, double min, double max) {
    Option option;
    option.schema = {sizeof(attn_option), 0, name, doc, fallback, min, max, nullptr};
    return option;
  }
};
using Options = std::vector<Option>;

// The values of one mechanism's options, by name.  Asking for a name that is not in the schema is a bug of the plugin.
class Values {
 public:
  Values(const attn_value* values, const Options& schema) : values_(values), schema_(schema) {}
  int64_t integer(std::string_view name) const { return values_[index(name)].i; }
  double real(std::string_view name) const { return values_[index(name)].f; }
  bool boolean(std::string_view name) const { return values_[index(name)].i != 0; }
  std::string_view text(std::string_view name) const { return values_[index(name)].s; }
  // Position in the schema, for Refusal's where.
  int32_t index(std::string_view name) const {
    for (size_t i = 0; i < schema_.size(); ++i)
      if (name == schema_[i].schema.name) return static_cast<int32_t>(i);
    throw Refusal(ATTN_INTERNAL, say("the plugin asks for its option \"", name, "\", which its schema lacks"));
  }

 private:
  const attn_value* values_;
  const Options& schema_;
};

// The ports of one mechanism in the order of the calls; each call returns the port's index.  Names and docs are
// string literals.  heads: of the block.
class Ports {
 public:
  explicit Ports(int64_t heads) : heads_(heads) {}
  uint32_t query(const char* name, int64_t width, const char* doc, uint32_t flags = 0) {
    return sequence(ATTN_QUERY, name, width, doc, flags);
  }
  uint32_t key(const char* name, int64_t width, const char* doc, uint32_t flags = 0) {
    return sequence(ATTN_KEY, name, width, doc, flags);
  }
  uint32_t output(const char* name, int64_t width, const char* doc, uint32_t flags = 0) {
    return sequence(ATTN_OUTPUT, name, width, doc, flags);
  }
  uint32_t aux_in(const char* name, int64_t rows, int64_t width, const char* doc) {
    return add({sizeof(attn_port), ATTN_AUX_IN, 0, 2, 32, 4, name, doc, {0, 1, rows, width}});
  }
  uint32_t aux_out(const char* name, int64_t rows, int64_t width, const char* doc) {
    return add({sizeof(attn_port), ATTN_AUX_OUT, 0, 2, 32, 4, name, doc, {0, 1, rows, width}});
  }
  uint32_t learned(const char* name, std::initializer_list<int64_t> shape, const char* doc, uint32_t flags = 0) {
    return stored(ATTN_LEARNED, name, shape, doc, flags, 2);
  }
  // dtype_code: DLPack, int 0, float 2; 32 bits.
  uint32_t table(const char* name, std::initializer_list<int64_t> shape, const char* doc, uint32_t flags = 0,
                 uint8_t dtype_code = 2) {
    return stored(ATTN_TABLE, name, shape, doc, flags, dtype_code);
  }
  const std::vector<const attn_port*>& list() const { return list_; }

 private:
  uint32_t sequence(uint32_t kind, const char* name, int64_t width, const char* doc, uint32_t flags) {
    const int64_t heads = kind != ATTN_OUTPUT && (flags & ATTN_RAW) ? 1 : heads_;
    return add({sizeof(attn_port), kind, flags, 0, 0, 4, name, doc, {0, heads, 0, width}});
  }
  uint32_t stored(uint32_t kind, const char* name, std::initializer_list<int64_t> shape, const char* doc,
                  uint32_t flags, uint8_t dtype_code) {
    attn_port port{sizeof(attn_port), kind, flags, dtype_code, 32, static_cast<uint16_t>(shape.size()), name, doc, {}};
    std::copy(shape.begin(), shape.end(), port.shape);
    return add(port);
  }
  uint32_t add(const attn_port& port) {
    list_.push_back(&store_.emplace_back(port));  // a deque never moves what it holds
    return static_cast<uint32_t>(list_.size() - 1);
  }
  int64_t heads_;
  std::deque<attn_port> store_;
  std::vector<const attn_port*> list_;
};

}  // namespace attnkit

#include <attnkit/plugin_check.hpp>
#include <attnkit/plugin_table.hpp>

// Defines the library's one export for mechanism T.
#define ATTNKIT_PLUGIN(T)                                                                                        \
  extern "C" int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* error) { \
    return attnkit::Table<T>::main(host, plugin, error);                                                         \
  }
#endif
