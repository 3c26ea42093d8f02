// Turns a C++ struct that is mostly mathematics into the C table of plugin.h; header only, no part of the ABI.
//
// A mechanism is a struct T with
//   static constexpr attnkit::About about;                    who it is
//   static attnkit::Options options();                        the schema of its options, {} for none
//   T(const attn_block&, const attnkit::Values&, attnkit::Ports&);       fixes options, lists ports; may throw Refusal;
//                                                                        kv_heads and key_width are never 0 here
//   struct Plan;                                              whatever run needs beside the request
//   Plan plan(const attnkit::Request&, attnkit::Info&) const; adds to info; may throw Refusal
//   void run(const Plan&, const attn_run&) const;             throws before its first write or not at all
//   void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const;    only with LEARNED or TABLE ports
//   void backward(const Plan&, const attn_grad&) const;       only if it has one: then it serves f64 and ATTN_TRAIN
// and one line ATTNKIT_PLUGIN(T).  Every exception becomes a code; std::bad_alloc becomes ATTN_NO_MEMORY.  Before T
// sees a request, a run or a gradient it was checked against the contract: bounds, flags, shapes, strides, scratch,
// state.  After a run on the CPU, rows of OUTPUT past q_len or of queries that see no key are set to 0; before
// backward, all gradients that it overwrites are, but for a T with a constant clears_gradients, which does it itself.
#ifndef ATTNKIT_PLUGIN_HPP
#define ATTNKIT_PLUGIN_HPP
#include <attnkit/plugin.h>
#if __cplusplus < 202002L
#error "attnkit/plugin.hpp needs C++20: compile with -std=c++20, or use attnkit/plugin.h, which needs C99 alone"
#else

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

// Thrown by a mechanism to refuse.  where: the option (in create) or the port (in run) at fault, or -1.
class Refusal : public std::exception {
 public:
  Refusal(int32_t code, std::string message, int32_t where = -1)
      : code_(code), where_(where), message_(std::move(message)) {}
  int32_t code() const noexcept { return code_; }
  int32_t where() const noexcept { return where_; }
  const char* what() const noexcept override { return message_.c_str(); }
  Refusal at(int32_t where) const { return Refusal(code_, message_, where); }

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

// A port of the mechanism; one that was never declared is absent.
class Port {
 public:
  Port() = default;
  explicit Port(uint32_t index) : index_(index) {}
  explicit operator bool() const { return index_ != kAbsent; }
  bool operator==(uint32_t index) const { return index_ == index; }
  int32_t where() const { return static_cast<int32_t>(index_); }  // for Refusal
  // Its tensor, or one without data.
  attn_tensor of(const attn_tensor* tensors) const { return *this ? tensors[index_] : attn_tensor{}; }

 private:
  static constexpr uint32_t kAbsent = ~uint32_t{0};
  uint32_t index_ = kAbsent;
};

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
  // data is NULL when the port is absent, and of a gradient when it is skipped.
  View(const attn_run& run, Port port) : View(port.of(run.ports)) {}
  View(const attn_grad& grad, Port port) : View(port.of(grad.grads)) {}
  explicit operator bool() const { return data != nullptr; }
  // Heads n, n + step, n + 2 step, ... alone.
  View every(int64_t step, int64_t n) const {
    View some = *this;
    if (data) some.data += n * head;
    some.head *= step;
    return some;
  }
  T* row(int64_t b, int64_t h, int64_t i) const { return data + (b * batch + h * head + i * next); }
  T* row(int64_t i = 0) const { return data + i * next; }
};

// The identity of a mechanism; see attn_plugin.  device_type: DLPack, CPU 1, CUDA 2.
struct About {
  const char *name, *summary, *citation, *state_revision;
  int32_t device_type = 1;
  uint32_t oldest_host_minor = 0;
  bool takes_halves = false, trains_halves = false;  // f16 and bf16
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
  bool has(std::string_view name) const { return find(name) < schema_.size(); }
  // Position in the schema, for Refusal's where.
  int32_t index(std::string_view name) const {
    if (has(name)) return static_cast<int32_t>(find(name));
    throw Refusal(ATTN_INTERNAL, say("the plugin asks for its option \"", name, "\", which its schema lacks"));
  }

 private:
  size_t find(std::string_view name) const {
    size_t i = 0;
    while (i < schema_.size() && name != schema_[i].schema.name) ++i;
    return i;
  }
  const attn_value* values_;
  const Options& schema_;
};

// H, D and E of a block, and the heads of keys and values that a mechanism takes.
struct Widths {
  int64_t heads, kv_heads, d, e;
  // shares_keys: those of the model as they are; otherwise one for each head of queries, repeated by the host.
  explicit Widths(const attn_block& b, bool shares_keys = false)
      : heads(b.heads), kv_heads(shares_keys ? b.kv_heads : b.heads), d(b.key_width), e(b.head_width) {}
  int64_t group() const { return heads / kv_heads; }  // heads of queries that go with one head of keys
};

// The ports of attention, and their rows in a run.
struct QkvPorts {
  Port q, k, v, o;
};
template <class Real = float>
struct Qkv {
  View<const Real> q, k, v;
  View<Real> o;
  Qkv(const attn_run& run, const QkvPorts& ports)
      : q(run, ports.q), k(run, ports.k), v(run, ports.v), o(run, ports.o) {}
};
// Their gradients: that of o is given, the others are absent where they are skipped.
template <class Real>
struct QkvGrad {
  View<Real> q, k, v;
  View<const Real> o;
  QkvGrad(const attn_grad& grad, const QkvPorts& ports)
      : q(grad, ports.q), k(grad, ports.k), v(grad, ports.v), o(grad, ports.o) {}
};

using PortList = std::vector<const attn_port*>;

// The ports of one mechanism in the order of the calls.  Names and docs are string literals.  heads: of the block.
class Ports {
 public:
  explicit Ports(int64_t heads) : heads_(heads) {}
  Port query(const char* name, int64_t width, const char* doc, uint32_t flags = 0) {
    return sequence(ATTN_QUERY, name, width, doc, flags);
  }
  Port key(const char* name, int64_t width, const char* doc, uint32_t flags = 0) {
    return sequence(ATTN_KEY, name, width, doc, flags);
  }
  Port output(const char* name, int64_t width, const char* doc, uint32_t flags = 0) {
    return sequence(ATTN_OUTPUT, name, width, doc, flags);
  }
  QkvPorts qkv(const Widths& w, const char* output_doc) {
    return {query("q", w.d, "queries"), sequence(ATTN_KEY, "k", w.d, "keys", 0, w.kv_heads),
            sequence(ATTN_KEY, "v", w.e, "values", 0, w.kv_heads), output("o", w.e, output_doc)};
  }
  Port aux_in(const char* name, int64_t rows, int64_t width, const char* doc) {
    return add({sizeof(attn_port), ATTN_AUX_IN, 0, 2, 32, 4, name, doc, {0, 1, rows, width}});
  }
  Port aux_out(const char* name, int64_t rows, int64_t width, const char* doc) {
    return add({sizeof(attn_port), ATTN_AUX_OUT, 0, 2, 32, 4, name, doc, {0, 1, rows, width}});
  }
  Port learned(const char* name, std::initializer_list<int64_t> shape, const char* doc, uint32_t flags = 0) {
    return stored(ATTN_LEARNED, name, shape, doc, flags, 2);
  }
  // dtype_code: DLPack, int 0, float 2; 32 bits.
  Port table(const char* name, std::initializer_list<int64_t> shape, const char* doc, uint32_t flags = 0,
             uint8_t dtype_code = 2) {
    return stored(ATTN_TABLE, name, shape, doc, flags, dtype_code);
  }
  const PortList& list() const { return list_; }

 private:
  Port sequence(uint32_t kind, const char* name, int64_t width, const char* doc, uint32_t flags) {
    return sequence(kind, name, width, doc, flags, kind != ATTN_OUTPUT && (flags & ATTN_RAW) ? 1 : heads_);
  }
  Port sequence(uint32_t kind, const char* name, int64_t width, const char* doc, uint32_t flags, int64_t heads) {
    return add({sizeof(attn_port), kind, flags, 0, 0, 4, name, doc, {0, heads, 0, width}});
  }
  Port stored(uint32_t kind, const char* name, std::initializer_list<int64_t> shape, const char* doc, uint32_t flags,
              uint8_t dtype_code) {
    if (shape.size() > std::size(attn_port{}.shape))
      throw Refusal(ATTN_INTERNAL,
                    say("port \"", name, "\" has ", shape.size(), " dimensions, at most 4 are possible"));
    attn_port port{sizeof(attn_port), kind, flags, dtype_code, 32, static_cast<uint16_t>(shape.size()), name, doc, {}};
    std::copy(shape.begin(), shape.end(), port.shape);
    return add(port);
  }
  Port add(const attn_port& port) {
    list_.push_back(&store_.emplace_back(port));  // a deque never moves what it holds
    return Port(static_cast<uint32_t>(list_.size() - 1));
  }
  int64_t heads_;
  std::deque<attn_port> store_;
  PortList list_;
};

inline uint64_t aligned(uint64_t bytes) { return (bytes + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN; }
inline uint64_t float_bytes(int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); }

// The upper bounds of runs, as in plugin.h.
struct Request : attn_request {
  bool streams() const { return (flags & ATTN_STREAM) != 0; }
  bool trains() const { return (flags & ATTN_TRAIN) != 0; }
  bool shows_prefixes() const { return (flags & ATTN_PREFIX) != 0; }
  bool knows_q_total() const { return (flags & ATTN_KNOWS_Q_TOTAL) != 0; }
  bool knows_k_total() const { return (flags & ATTN_KNOWS_K_TOTAL) != 0; }
  bool is_f64() const { return dtype_bits == 64; }
  uint64_t real_bytes(int64_t n) const { return static_cast<uint64_t>(n) * (dtype_bits / 8); }
  int64_t capacity() const { return past + keys; }
};

// The answer to a request.  It arrives with bytes_read and bytes_written of the ports and zeros.
struct Info : attn_info {
  // Scratch of each worker; returns worker_bytes.
  uint64_t scratch(const Request& r, uint64_t worker_bytes) {
    scratch_bytes = worker_bytes * r.workers;
    return worker_bytes;
  }
  // flops are so many times `each`; throws where 64 bits do not hold them.
  void count(const Request& r, int64_t times, uint64_t each) {
    if (static_cast<double>(times) * static_cast<double>(each) > 0x1p62)
      throw invalid("a run of batch ", r.batch, ", ", r.queries, " queries and ", r.keys,
                    " keys counts more operations than 64 bits hold: ask for less");
    flops = static_cast<uint64_t>(times) * each;
  }
  // Memory under ATTN_TRAIN: saved numbers of the plan's type, and backward's scratch of each
  // worker and of all together.
  void train(const Request& r, int64_t saved, uint64_t worker_bytes, uint64_t shared_bytes = 0) {
    if (!r.trains()) return;
    saved_bytes = aligned(r.real_bytes(saved));
    backward_scratch_bytes = worker_bytes * r.workers + shared_bytes;
  }
  // The floats that one row of a streaming run keeps, and those of them that it reads and writes.
  struct Kept {
    int64_t floats, read, written;
  };
  void state(const Request& r, const Kept& row) {
    if (!r.streams()) return;
    state_bytes = aligned(float_bytes(row.floats));
    bytes_read += float_bytes(r.batch * row.read);
    bytes_written += float_bytes(r.batch * row.written);
  }
  // A state that every run reads and every key changes.
  void state(const Request& r, int64_t floats) { state(r, {floats, floats, r.keys > 0 ? floats : 0}); }
};

// Parts of a piece of memory, one after another, each aligned to ATTN_ALIGN bytes.  A struct of parts takes them from a
// Layout& in its constructor: plan measures it, run points it at scratch.
class Layout {
 public:
  explicit Layout(void* memory = nullptr) : begin_(reinterpret_cast<uintptr_t>(memory)) {}
  template <class T = float>
  T* take(int64_t n) {
    const uintptr_t part = begin_ + bytes_;
    bytes_ += aligned(static_cast<uint64_t>(n) * sizeof(T));
    return reinterpret_cast<T*>(part);
  }
  uint64_t bytes() const { return bytes_; }
  template <class Parts, class... Argument>
  static uint64_t measure(const Argument&... arguments) {
    Layout layout;
    Parts(layout, arguments...);
    return layout.bytes();
  }

 private:
  uintptr_t begin_;
  uint64_t bytes_ = 0;
};

// The state of a run, false when it has none.
struct State {
  char* data;
  uint64_t stride;
  const int32_t* slots;
  explicit State(const attn_run& run)
      : data(static_cast<char*>(run.state)), stride(run.state_stride), slots(run.slots) {}
  explicit operator bool() const { return data != nullptr; }
  // Returns the state of batch row b.
  template <class Real = float>
  Real* row(int64_t b) const {
    return reinterpret_cast<Real*>(data + static_cast<uint64_t>(slots ? slots[b] : b) * stride);
  }
  // The h-th part of it, of n numbers each; `fresh`, zeroed, when the run has no state.
  template <class Real>
  Real* head(int64_t b, int64_t h, int64_t n, Real* fresh) const {
    if (data != nullptr) return row<Real>(b) + h * n;
    std::memset(fresh, 0, static_cast<size_t>(n) * sizeof(Real));
    return fresh;
  }
};

// The keys of one run that row b knows and its queries see.  past: in the state; fresh: appended by this run.
struct Sight {
  int64_t queries, fresh, past;
  int64_t q_pos;
  const int32_t* visible;
  bool causal;

  Sight(const attn_run& run, int64_t b, bool is_causal)
      : queries(run.q_len ? run.q_len[b] : run.queries),
        fresh(run.k_len ? run.k_len[b] : run.keys),
        past(run.k_pos ? run.k_pos[b] : 0),
        q_pos(run.q_pos ? run.q_pos[b] : 0),
        visible(run.visible ? run.visible + b * run.queries : nullptr),
        causal(is_causal) {}
  // Number of keys that query i sees, past ones included.
  int64_t seen(int64_t i) const {
    const int64_t all = past + fresh;
    if (visible) return visible[i] < all ? visible[i] : all;
    if (!causal) return all;
    return q_pos + i + 1 < all ? q_pos + i + 1 : all;
  }
  // The order in which a recurrence computes: append(from, to) the fresh keys that query i is the first to see, read(i)
  // each query that sees any; the keys that are left only if `all`, because a state keeps them.
  template <class Append, class Read>
  inline __attribute__((always_inline)) void walk(bool all, const Append& append, const Read& read) const {
    int64_t appended = 0;
    const auto append_to = [&](int64_t limit) __attribute__((always_inline)) {
      if (appended >= limit) return;
      append(appended, limit);
      appended = limit;
    };
    for (int64_t i = 0; i < queries; ++i)
      if (const int64_t now = seen(i); now > 0) {
        append_to(now - past);
        read(i);
      }
    if (all) append_to(fresh);
  }
};

// Pairs of query and key that one run at the bounds of a request weighs.
inline uint64_t pairs(const attn_request& r, bool causal) {
  const int64_t all = r.past + r.keys;
  const int64_t hidden = causal ? std::min(r.queries, all) : 0;  // query i from the end misses i keys
  return static_cast<uint64_t>(r.batch * (r.queries * all - hidden * (hidden - 1) / 2));
}

// Runs task over [0, n): inline when all of it takes about as long as waking a thread.  flops: of one item.
inline void for_each(const attn_exec& exec, int64_t n, double flops, attn_task task, const void* arg) {
  constexpr double kWorthAThread = 2e5;
  if (n == 0) return;
  const auto grain = static_cast<int64_t>(kWorthAThread / std::max(flops, 1.0)) + 1;
  const auto passed = reinterpret_cast<uintptr_t>(arg);
  if (exec.workers == 1 || n <= grain)
    task(passed, 0, n, 0);
  else
    exec.parallel_for(exec.pool, n, grain, task, passed);
}

// The checks of the contract that are the same for every plugin.
namespace check {

inline bool has_bits(uint32_t flags, uint32_t bits) { return (flags & bits) != 0; }

// The block as this header has it, whatever the host's: kv_heads and key_width are what 0 stands for.
inline attn_block block(const attn_block& given) {
  if (!ATTN_HAS(attn_block, &given, head_width)) throw invalid("attn_block is shorter than its first version");
  attn_block b{};
  std::memcpy(&b, &given, std::min<size_t>(given.struct_size, sizeof b));
  b.struct_size = sizeof b;
  const auto heads = static_cast<int64_t>(b.heads);
  if (heads == 0 || b.d_model <= 0 || b.head_width <= 0 || b.key_width < 0 ||
      (b.key_width == 0 && b.d_model % heads != 0))
    throw invalid("a block of d_model ", b.d_model, ", ", heads, " heads and head width ", b.head_width,
                  " is impossible: heads must divide d_model and all be positive");
  if (b.kv_heads == 0) b.kv_heads = b.heads;
  if (b.heads % b.kv_heads != 0)
    throw invalid("a block of ", heads, " heads and ", b.kv_heads,
                  " heads of keys is impossible: the second must divide the first");
  if (b.key_width == 0) b.key_width = static_cast<int32_t>(b.d_model / heads);
  return b;
}

inline void request(const attn_request& r, int32_t device_type, bool has_backward) {
  if (!ATTN_HAS(attn_request, &r, past)) throw invalid("attn_request is shorter than its first version");
  if (r.batch < 0 || r.queries < 0 || r.keys < 0 || r.past < 0 || r.workers == 0)
    throw invalid("a request has a negative bound or no worker");
  if (has_bits(r.flags, ATTN_STREAM) && has_bits(r.flags, ATTN_PREFIX))
    throw invalid("ATTN_PREFIX excludes ATTN_STREAM: a stream shows keys by appending them");
  if (has_bits(r.flags, ATTN_TRAIN) && !has_backward)
    throw unsupported("it has no backward pass yet: run it without ATTN_TRAIN");
  if (has_bits(r.flags, ATTN_TRAIN) && has_bits(r.flags, ATTN_STREAM))
    throw unsupported("gradients are of whole sequences: plan without ATTN_STREAM to train");
  if (r.device_type != device_type)
    throw unsupported("this library runs on device type ", device_type, " and was asked for ", r.device_type,
                      ": load the variant of the mechanism for that device");
}

inline bool is_half(const attn_request& r) { return r.dtype_bits == 16 && (r.dtype_code == 2 || r.dtype_code == 4); }

// Refuses elements that it does not compute in: f32 always, f64 without state where it has gradients, f16 and bf16
// where the mechanism says so.
inline void type(const attn_request& r, bool has_backward, const About& about) {
  const bool takes_halves = about.takes_halves;
  if (r.dtype_code == 2 && r.dtype_bits == 32 && r.dtype_lanes == 1) return;
  if (takes_halves && is_half(r) && r.dtype_lanes == 1) {
    if (has_bits(r.flags, ATTN_TRAIN) && !about.trains_halves)
      throw unsupported("its gradients are of f32: train this block in f32");
    return;
  }
  if (r.dtype_code != 2 || r.dtype_bits != 64 || r.dtype_lanes != 1 || !has_backward)
    throw unsupported("it computes in ", takes_halves ? "f32, f16 and bf16" : "f32 only", " and was asked for ",
                      int{r.dtype_bits}, "-bit elements of DLPack code ", int{r.dtype_code}, ": run this block in f32");
  if (has_bits(r.flags, ATTN_STREAM))
    throw unsupported("its f64 form is of whole sequences, to check gradients with: stream in f32");
}

inline bool is_sequence(const attn_port& p) { return p.kind <= ATTN_OUTPUT; }

inline bool is_aux(const attn_port& p) { return p.kind == ATTN_AUX_IN || p.kind == ATTN_AUX_OUT; }

inline int64_t rows_of(const attn_port& p, const attn_run& run) { return p.kind == ATTN_KEY ? run.keys : run.queries; }

// Whether a port has a type of its own under a plan: f64 plans have f64 everywhere but in tables.
inline bool is_typed(const attn_port& p, const attn_request& r) {
  return p.dtype_bits != 0 && (p.kind == ATTN_TABLE || r.dtype_bits != 64);
}
inline uint8_t bits_of(const attn_port& p, const attn_request& r) {
  return is_typed(p, r) ? p.dtype_bits : r.dtype_bits;
}

inline bool fits(const attn_port& p, const attn_tensor& t, const attn_request& r, const attn_run& run) {
  if (t.ndim != p.ndim || t.dtype_lanes != 1 || t.device_type != r.device_type) return false;
  if (t.dtype_code != (is_typed(p, r) ? p.dtype_code : r.dtype_code) || t.dtype_bits != bits_of(p, r)) return false;
  if (t.stride[t.ndim - 1] != 1 && t.shape[t.ndim - 1] > 1) return false;
  for (uint32_t i = 0; i < t.ndim; ++i) {
    int64_t want = p.shape[i];
    if ((is_sequence(p) || is_aux(p)) && i == 0) want = run.batch;
    if (is_sequence(p) && i == 2) want = rows_of(p, run);
    if (is_aux(p) && i == 2 && want == 0) continue;  // the host knows how many rows there are
    if (t.shape[i] != want) return false;
  }
  const bool empty = is_sequence(p) && (run.batch == 0 || rows_of(p, run) == 0);
  return t.data != nullptr || empty || p.kind == ATTN_AUX_IN;
}

inline void sizes(const attn_request& r, const attn_run& run) {
  const struct {
    const char* name;
    int64_t is, bound;
  } all[] = {{"batch", run.batch, r.batch}, {"queries", run.queries, r.queries}, {"keys", run.keys, r.keys}};
  for (const auto& size : all)
    if (size.is < 0 || size.is > size.bound)
      throw invalid("a run has ", size.is, " ", size.name, " and its plan allows 0 to ", size.bound);
}

inline void memory(const attn_request& r, const attn_info& info, const attn_run& run, uint64_t scratch_bytes) {
  const attn_exec* exec = run.exec;
  if (exec == nullptr || exec->workers == 0 || exec->workers > r.workers)
    throw invalid("a run has ", exec ? exec->workers : 0u, " workers and its plan allows 1 to ", r.workers);
  if (exec->scratch_bytes < scratch_bytes || (scratch_bytes && !exec->scratch) ||
      reinterpret_cast<uintptr_t>(exec->scratch) % ATTN_ALIGN != 0)
    throw invalid("a run brings ", exec->scratch_bytes, " bytes of scratch and its plan needs ", scratch_bytes,
                  ", aligned to ", ATTN_ALIGN);
  if (run.batch == 0) return;
  if (has_bits(r.flags, ATTN_STREAM) != (run.state != nullptr))
    throw invalid("a run brings state if and only if its plan was made with ATTN_STREAM");
  if (run.state != nullptr && (run.state_stride < info.state_bytes || run.state_stride % ATTN_ALIGN != 0 ||
                               reinterpret_cast<uintptr_t>(run.state) % ATTN_ALIGN != 0))
    throw invalid("state rows are ", run.state_stride, " bytes apart and need ", info.state_bytes, ", aligned to ",
                  ATTN_ALIGN);
  if (has_bits(r.flags, ATTN_TRAIN) &&
      ((info.saved_bytes && !run.saved) || reinterpret_cast<uintptr_t>(run.saved) % ATTN_ALIGN != 0))
    throw invalid("a run brings no room to save, or none aligned to ", ATTN_ALIGN, ": its plan, made with ATTN_TRAIN, ",
                  "saves ", info.saved_bytes, " bytes");
}

// Everything a run must satisfy before a mechanism reads it; costs tens of nanoseconds and writes nothing.
// scratch_bytes: of the run, or of the gradient that it is part of.
inline void run(const PortList& ports, const attn_request& r, const attn_info& info, const attn_run& run,
                uint64_t scratch_bytes) {
  if (!ATTN_HAS(attn_run, &run, saved)) throw invalid("attn_run is shorter than its first version");
  sizes(r, run);
  memory(r, info, run, scratch_bytes);
  for (size_t i = 0; i < ports.size(); ++i)
    if (!fits(*ports[i], run.ports[i], r, run))
      throw Refusal(ATTN_INVALID,
                    say("the tensor of port \"", ports[i]->name,
                        "\" differs from its declaration in shape, type or device, or its last stride is not 1"),
                    static_cast<int32_t>(i));
  if (run.batch == 0) return;
  if (has_bits(r.flags, ATTN_PREFIX) != (run.visible != nullptr) && run.queries > 0)
    throw invalid("a run brings visible if and only if its plan was made with ATTN_PREFIX");
  if (has_bits(r.flags, ATTN_KNOWS_Q_TOTAL) && run.q_total == nullptr)
    throw invalid("q_total is missing: the plan was made with ATTN_KNOWS_Q_TOTAL");
  if (has_bits(r.flags, ATTN_KNOWS_K_TOTAL) && run.k_total == nullptr)
    throw invalid("k_total is missing: the plan was made with ATTN_KNOWS_K_TOTAL");
}

// Everything a gradient must satisfy besides.
inline void grad(const PortList& ports, const attn_request& r, const attn_info& info, const attn_grad& grad) {
  if (!ATTN_HAS(attn_grad, &grad, grads)) throw invalid("attn_grad is shorter than its first version");
  if (!has_bits(r.flags, ATTN_TRAIN))
    throw invalid("a gradient needs a plan that was made with ATTN_TRAIN, and this one was not");
  if (grad.run == nullptr || grad.grads == nullptr) throw invalid("a gradient names no run or brings no tensors");
  run(ports, r, info, *grad.run, info.backward_scratch_bytes);
  for (size_t i = 0; i < ports.size(); ++i) {
    const bool given = ports[i]->kind == ATTN_OUTPUT || ports[i]->kind == ATTN_AUX_OUT;
    if (!given && grad.grads[i].data == nullptr) continue;
    if (!fits(*ports[i], grad.grads[i], r, *grad.run))
      throw invalid("the gradient of port \"", ports[i]->name,
                    "\" differs from the port's declaration in shape, type or device, or its last stride is not 1")
          .at(static_cast<int32_t>(i));
  }
}

// Is t a contiguous CPU tensor as port p declares it?  Returns its number of elements, throws if not.
inline int64_t stored(const attn_port& p, const attn_tensor& t) {
  int64_t count = 1;
  bool ok = (p.kind == ATTN_LEARNED || p.kind == ATTN_TABLE) && t.data != nullptr && t.ndim == p.ndim &&
            t.device_type == 1 && t.dtype_code == p.dtype_code && t.dtype_bits == p.dtype_bits;
  for (int i = static_cast<int>(p.ndim) - 1; ok && i >= 0; --i) {
    ok = t.shape[i] == p.shape[i] && (t.stride[i] == count || t.shape[i] == 1);
    count *= p.shape[i];
  }
  if (!ok)
    throw invalid("port \"", p.name, "\" is not stored, or the tensor to fill is not a contiguous CPU one like it");
  return count;
}

}  // namespace check

// Refuses requests that no position-wise mechanism can serve in this block.
inline void check_sight(const attn_block& block, const attn_request& request) {
  if (!block.causal && block.role != ATTN_DECODER_CROSS && (request.flags & ATTN_STREAM))
    throw unsupported(
        "bidirectional self attention cannot stream, its queries need keys that have not arrived: make the block "
        "causal "
        "or run whole sequences");
  if (block.causal && (request.flags & ATTN_PREFIX))
    throw unsupported("a causal block already says which keys a query sees: run it without ATTN_PREFIX");
}

// Writes an error if the caller wants one, cut at a whole character, and returns its code.
inline int32_t fail(attn_error* error, int32_t code, const char* message, int32_t where = -1) noexcept {
  if (error != nullptr && ATTN_HAS(attn_error, error, message)) {
    error->code = code;
    error->where = where;
    size_t n = std::min(std::strlen(message), sizeof error->message - 1);
    if (message[n] != '\0')  // no character has more than three bytes after its first
      for (int i = 0; i < 3 && n > 0 && (static_cast<unsigned char>(message[n]) & 0xC0) == 0x80; ++i) --n;
    std::memcpy(error->message, message, n);
    error->message[n] = '\0';
  }
  return code;
}

// Runs f; whatever it throws becomes a code.
template <class F>
int32_t guarded(attn_error* error, F&& f) noexcept {
  try {
    f();
    return ATTN_OK;
  } catch (const Refusal& refusal) {
    return fail(error, refusal.code(), refusal.what(), refusal.where());
  } catch (const std::bad_alloc&) {
    return fail(error, ATTN_NO_MEMORY, "out of memory: free some, or ask for smaller bounds");
  } catch (const std::exception& other) {
    return fail(error, ATTN_INTERNAL, other.what());
  } catch (...) {
    return fail(error, ATTN_INTERNAL, "the plugin threw something that is no std::exception");
  }
}

// Adds the bytes of the ports of one run at the bounds, each counted once.
inline void count_ports(const PortList& ports, const attn_request& r, attn_info& info) {
  for (const attn_port* port : ports) {
    const bool sequence = check::is_sequence(*port), aux = check::is_aux(*port);
    const int64_t rows = aux ? port->shape[2] : port->kind == ATTN_KEY ? r.keys : r.queries;
    int64_t elements = r.batch > 0 && r.queries + r.keys > 0 ? 1 : 0;
    if (sequence || aux)
      elements = r.batch * port->shape[1] * rows * port->shape[3];
    else
      for (uint32_t i = 0; i < port->ndim; ++i) elements *= port->shape[i];
    const bool written = port->kind == ATTN_OUTPUT || port->kind == ATTN_AUX_OUT;
    (written ? info.bytes_written : info.bytes_read) +=
        static_cast<uint64_t>(elements) * (check::bits_of(*port, r) / 8);
  }
}

// Zeroes the rows of OUTPUT past q_len and those of queries that see no key.
inline void clear_unseen(const PortList& ports, const attn_run& run) {
  struct Job {
    const attn_run& run;
    const attn_tensor& t;
  };
  const auto clear = [](uintptr_t arg, int64_t begin, int64_t end, uint32_t) {
    const auto& [run, t] = *reinterpret_cast<const Job*>(arg);
    const size_t element = t.dtype_bits / 8, bytes = static_cast<size_t>(t.shape[3]) * element;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / t.shape[1], h = item % t.shape[1];
      const Sight sight(run, b, false);
      char* head = static_cast<char*>(t.data) + static_cast<size_t>(b * t.stride[0] + h * t.stride[1]) * element;
      for (int64_t i = 0; i < run.queries; ++i)
        if (i >= sight.queries || sight.seen(i) <= 0)
          std::memset(head + static_cast<size_t>(i * t.stride[2]) * element, 0, bytes);
    }
  };
  bool any = run.visible != nullptr;
  for (int64_t b = 0; b < run.batch; ++b) {
    const Sight sight(run, b, false);
    any = any || sight.queries < run.queries || sight.past + sight.fresh == 0;
  }
  if (!any) return;
  const auto output = std::find_if(ports.begin(), ports.end(), [](auto* port) { return port->kind == ATTN_OUTPUT; });
  const Job job{run, run.ports[output - ports.begin()]};
  for_each(*run.exec, run.batch * job.t.shape[1], static_cast<double>(run.queries * job.t.shape[3]), clear, &job);
}

// Zeroes the gradients of sequences, so that backward may add and what it never touches is zero.
inline void clear_gradients(const PortList& ports, const attn_grad& grad) {
  const auto clear = [](uintptr_t arg, int64_t begin, int64_t end, uint32_t) {
    const auto& t = *reinterpret_cast<const attn_tensor*>(arg);
    const int64_t element = t.dtype_bits / 8;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / t.shape[1], h = item % t.shape[1];
      char* row = static_cast<char*>(t.data) + (b * t.stride[0] + h * t.stride[1]) * element;
      for (int64_t i = 0; i < t.shape[2]; ++i, row += t.stride[2] * element)
        std::memset(row, 0, static_cast<size_t>(t.shape[3] * element));
    }
  };
  for (size_t i = 0; i < ports.size(); ++i) {
    const attn_tensor& t = grad.grads[i];
    const bool sequence = ports[i]->kind == ATTN_QUERY || ports[i]->kind == ATTN_KEY || ports[i]->kind == ATTN_AUX_IN;
    if (sequence && t.data != nullptr)
      for_each(*grad.run->exec, t.shape[0] * t.shape[1], static_cast<double>(t.shape[2] * t.shape[3]), clear, &t);
  }
}

// The C table of mechanism T and the noexcept functions in it.
template <class T>
struct Table {
  struct Made {
    Made(const attn_block& block, const Values& values) : ports(block.heads), mech(block, values, ports) {}
    Ports ports;
    T mech;
  };
  struct Planned {
    const Made* made;
    Request request;
    Info info;
    typename T::Plan plan;
  };

  // The options as C structs.  Made once, in main.
  struct Schema {
    Schema() {
      for (Option& option : options) {
        option.schema.n_choices = static_cast<uint32_t>(option.choices.size());
        option.schema.choices = option.choices.data();
        list.push_back(&option.schema);
      }
    }
    Options options = T::options();
    std::vector<const attn_option*> list;
  };
  static const Schema& schema() {
    static const Schema made;
    return made;
  }

  static const Made& made(const attn_mech* mech) { return *reinterpret_cast<const Made*>(mech); }

  static int32_t create(const attn_block* block, const attn_value* values, attn_mech** mech,
                        const attn_port* const** ports, uint32_t* n_ports, attn_error* error) noexcept {
    return guarded(error, [&] {
      auto made = std::make_unique<Made>(check::block(*block), Values(values, schema().options));
      *ports = made->ports.list().data();
      *n_ports = static_cast<uint32_t>(made->ports.list().size());
      *mech = reinterpret_cast<attn_mech*>(made.release());
    });
  }

  static void destroy(attn_mech* mech) noexcept { delete reinterpret_cast<Made*>(mech); }

  static int32_t fill(const attn_mech* mech, uint32_t port, uint64_t seed, const attn_tensor* tensor,
                      attn_error* error) noexcept {
    return guarded(error, [&] {
      const auto& ports = made(mech).ports.list();
      if (port >= ports.size()) throw invalid("port ", port, " does not exist: there are ", ports.size());
      const int64_t count = check::stored(*ports[port], *tensor);
      if constexpr (requires(const T& t) { t.fill(port, seed, static_cast<float*>(nullptr), count); })
        made(mech).mech.fill(port, seed, static_cast<float*>(tensor->data), count);
      else
        throw invalid("port \"", ports[port]->name, "\" has no initial content");
    });
  }

  static int32_t plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                      attn_error* error) noexcept {
    return guarded(error, [&] {
      check::request(*request, T::about.device_type, has_backward);
      check::type(*request, has_backward, T::about);
      Request known{};  // of a newer host's request, the part known here
      std::memcpy(&known, request, std::min<size_t>(request->struct_size, sizeof known));
      known.struct_size = sizeof(attn_request);
      Info answer{};
      answer.struct_size = sizeof(attn_info);
      count_ports(made(mech).ports.list(), known, answer);
      auto data = made(mech).mech.plan(known, answer);
      if (plan != nullptr)
        *plan = reinterpret_cast<attn_plan*>(new Planned{&made(mech), known, answer, std::move(data)});
      if (info != nullptr && info->struct_size > sizeof info->struct_size)
        std::memcpy(&info->flags, &answer.flags,
                    std::min<size_t>(info->struct_size, sizeof answer) - offsetof(attn_info, flags));
    });
  }

  static void plan_free(attn_plan* plan) noexcept { delete reinterpret_cast<Planned*>(plan); }

  static int32_t run(const attn_plan* plan, const attn_run* run, attn_error* error) noexcept {
    return guarded(error, [&] {
      const auto& planned = *reinterpret_cast<const Planned*>(plan);
      check::run(planned.made->ports.list(), planned.request, planned.info, *run, planned.info.scratch_bytes);
      planned.made->mech.run(planned.plan, *run);
      if constexpr (T::about.device_type == 1) clear_unseen(planned.made->ports.list(), *run);
    });
  }

  static constexpr bool has_backward = requires(const T& t, const typename T::Plan& p, const attn_grad& g) {
    t.backward(p, g);
  };
  static int32_t backward(const attn_plan* plan, const attn_grad* grad,
                          attn_error* error) noexcept requires has_backward {
    return guarded(error, [&] {
      const auto& planned = *reinterpret_cast<const Planned*>(plan);
      check::grad(planned.made->ports.list(), planned.request, planned.info, *grad);
      if constexpr (T::about.device_type == 1 && !requires { T::clears_gradients; })
        clear_gradients(planned.made->ports.list(), *grad);
      planned.made->mech.backward(planned.plan, *grad);
    });
  }

  static const attn_plugin& table() {
    decltype(attn_plugin::backward) gradients = nullptr;
    if constexpr (has_backward) gradients = backward;
    static const attn_plugin made{sizeof(attn_plugin),
                                  ATTN_ABI_MINOR,
                                  T::about.oldest_host_minor,
                                  T::about.device_type,
                                  T::about.name,
                                  T::about.summary,
                                  T::about.citation,
                                  T::about.state_revision,
                                  schema().list.data(),
                                  static_cast<uint32_t>(schema().list.size()),
                                  0,
                                  create,
                                  destroy,
                                  fill,
                                  plan,
                                  plan_free,
                                  run,
                                  gradients};
    return made;
  }

  static int32_t main(const attn_host* host, const attn_plugin** plugin, attn_error* error) noexcept {
    return guarded(error, [&] {
      if (!ATTN_HAS(attn_host, host, oldest_plugin_minor)) throw invalid("attn_host is shorter than its first version");
      if (host->abi_minor + 1 < T::about.oldest_host_minor + 1)  // nvcc warns of comparing unsigned with 0
        throw unsupported("plugin \"", T::about.name, "\" needs a host of attnkit ABI 1.", T::about.oldest_host_minor,
                          " or newer and this host is 1.", host->abi_minor, ": update the host");
      if (host->oldest_plugin_minor > ATTN_ABI_MINOR)
        throw unsupported("plugin \"", T::about.name, "\" was built for attnkit ABI 1.", ATTN_ABI_MINOR,
                          " and this host accepts 1.", host->oldest_plugin_minor, " or newer: update the plugin");
      *plugin = &table();
    });
  }
};

}  // namespace attnkit

// Defines the library's one export for mechanism T.
#define ATTNKIT_PLUGIN(T)                                                                                        \
  extern "C" int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* error) { \
    return attnkit::Table<T>::main(host, plugin, error);                                                         \
  }
#endif
#endif
