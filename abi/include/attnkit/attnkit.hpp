// attnkit.h for C++20: handles that free themselves, failures as exceptions, ids and logits as vectors; header only.
//
//   attnkit::Runtime runtime;
//   attnkit::Model model(runtime, "model.toml");
//   std::cout << model.translate("two hundred and forty-one euros") << '\n';
//
// Shapes, threads and lifetimes are those of attnkit.h; get() returns the C handle, for calls that have no method here.
// Objects are moved, not copied, and may be destroyed in any order.  Every failure throws attnkit::Error.
#ifndef ATTNKIT_HPP
#define ATTNKIT_HPP
#include <attnkit/attnkit.h>
#if __cplusplus < 202002L
#error "attnkit/attnkit.hpp needs C++20: compile with -std=c++20, or use attnkit/attnkit.h, which needs C99 alone"
#else

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <exception>
#include <initializer_list>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace attnkit {

using Ids = std::vector<int32_t>;
enum class Side : uint32_t { source = 0, target = 1 };

// One problem of a manifest or of a file that it names; see attnkit_diagnostic.
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
  int32_t where() const { return where_; }  // index of the option, port or session at fault, or -1
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
  // Owns the result of f(args..., &handle, &err).
  template <class F, class... Args>
  void make(F f, Args... args) {
    T* made = nullptr;
    call(f, args..., &made);
    owner_.reset(made);
  }

 private:
  std::unique_ptr<T, void (*)(T*)> owner_{nullptr, destroy};
};

// Returns the document of f(args..., &text, &err).
template <class F, class... Args>
std::string text_of(F f, Args... args) {
  Handle<attnkit_text, attnkit_text_destroy> text;
  text.make(f, args...);
  uint64_t bytes = 0;
  const char* data = attnkit_text_data(text.get(), &bytes);
  return {data, static_cast<size_t>(bytes)};
}

// Returns the bytes of f(args..., &blob, &err).
template <class F, class... Args>
std::vector<std::byte> bytes_of(F f, Args... args) {
  Handle<attnkit_blob, attnkit_blob_destroy> blob;
  blob.make(f, args...);
  uint64_t n = 0;
  const auto* data = static_cast<const std::byte*>(attnkit_blob_data(blob.get(), &n));
  return {data, data + n};
}

}  // namespace detail

inline std::string version() { return attnkit_version(); }  // of the library, such as "0.1.0"
inline uint32_t abi_minor() { return attnkit_abi_minor(); }

// A contiguous CPU tensor over data of T (float, double, int32_t, int64_t), which it does not own.
template <class T>
attn_tensor tensor(T* data, std::initializer_list<int64_t> shape) {
  const uint8_t code = std::is_floating_point_v<T> ? 2 : 0, bits = 8 * sizeof(T);
  const auto ndim = static_cast<uint32_t>(shape.size());
  attn_tensor t{const_cast<std::remove_const_t<T>*>(data), {}, {}, code, bits, 1, ndim, 1, 0};
  std::copy(shape.begin(), shape.end(), t.shape);
  int64_t stride = 1;
  for (uint32_t d = t.ndim; d-- > 0; stride *= t.shape[d]) t.stride[d] = stride;
  return t;
}

namespace detail {

template <class T>
attn_tensor one_row(std::span<const T> row) {
  return tensor(row.data(), {1, static_cast<int64_t>(row.size())});
}

}  // namespace detail

// Sequences of ids side by side, (rows, length), the shorter ones padded.
struct Batch {
  Ids ids, lengths;
  int64_t length = 0;
  explicit Batch(std::span<const Ids> rows = {}) {
    for (const Ids& row : rows) length = std::max(length, static_cast<int64_t>(row.size()));
    for (const Ids& row : rows) {
      ids.insert(ids.end(), row.begin(), row.end());
      ids.resize(ids.size() + static_cast<size_t>(length) - row.size());
      lengths.push_back(static_cast<int32_t>(row.size()));
    }
  }
  int64_t rows() const { return static_cast<int64_t>(lengths.size()); }
  attn_tensor view() const {
    static const int32_t none = 0;  // NULL means that there is no tensor
    return tensor(ids.empty() ? &none : ids.data(), {rows(), length});
  }
};

// Anything that can be read as samples of speech, within [-1, 1] at the model's sample_rate.
template <class T>
concept Samples = std::convertible_to<const T&, std::span<const float>>;

// Speech side by side, the shorter rows padded: samples (rows, length), or with bins frames (rows, length, bins).
struct SpeechBatch {
  std::vector<float> data;
  Ids lengths;
  int64_t length = 0, bins = 0;
  explicit SpeechBatch(std::span<const std::vector<float>> rows, int64_t frame = 0) : bins(frame) {
    const size_t width = static_cast<size_t>(std::max<int64_t>(1, bins));
    for (const auto& row : rows) {
      if (row.size() % width)
        throw Error(ATTN_INVALID,
                    std::to_string(row.size()) + " numbers do not make whole frames of " + std::to_string(width));
      length = std::max(length, static_cast<int64_t>(row.size() / width));
    }
    for (const auto& row : rows) {
      data.insert(data.end(), row.begin(), row.end());
      lengths.push_back(static_cast<int32_t>(row.size() / width));
      data.resize(lengths.size() * static_cast<size_t>(length) * width);
    }
  }
  int64_t rows() const { return static_cast<int64_t>(lengths.size()); }
  attn_tensor view() const {
    return bins ? tensor(data.data(), {rows(), length, bins}) : tensor(data.data(), {rows(), length});
  }
};

// Threads and loaded plugins.  threads 0: one per processor that the process may use.  plugin_path: folders
// separated by ':', searched first.  device_type: as in attnkit_runtime_options.
class Runtime : public detail::Handle<attnkit_runtime, attnkit_runtime_destroy> {
 public:
  explicit Runtime(uint32_t threads = 0, const std::string& plugin_path = "", int32_t device_type = 0) {
    const attnkit_runtime_options options{sizeof options, threads, detail::c_str(plugin_path), device_type, 0};
    make(attnkit_runtime_create, &options);
  }
  std::string describe() const { return detail::text_of(attnkit_runtime_describe, get()); }  // "attnkit.runtime/1"
  std::string list() const { return detail::text_of(attnkit_runtime_list, get()); }          // "attnkit.plugin-list/1"
};

// A batch of sources after the encoder, for any model with the same one; see attnkit_model_decode.
class Encoded : public detail::Handle<attnkit_encoded, attnkit_encoded_destroy> {
 private:
  friend class Model;  // makes them
  Encoded() = default;
};

class Model : public detail::Handle<attnkit_model, attnkit_model_destroy> {
 public:
  // Reads a manifest file and all it names.  A failure carries every diagnostic; *warnings gets those of a success.
  Model(const Runtime& runtime, const std::string& path, std::vector<Diagnostic>* warnings = nullptr) {
    load(warnings, attnkit_model_open, runtime.get(), detail::c_str(path));
  }
  // The same from a manifest's text; dir: the folder that its paths are relative to.
  Model(const Runtime& r, const std::string& toml, const std::string& dir,
        std::vector<Diagnostic>* warnings = nullptr) {
    load(warnings, attnkit_model_create, r.get(), detail::c_str(toml), detail::c_str(dir));
  }
  attnkit_model_info info() const {
    attnkit_model_info info{};
    info.struct_size = sizeof info;
    detail::call(attnkit_model_get_info, get(), &info);
    return info;
  }
  std::string describe(const std::vector<int64_t>& lengths = {}) const {  // JSON "attnkit.model-description/1"
    return detail::text_of(attnkit_model_describe, get(), lengths.data(), static_cast<uint32_t>(lengths.size()));
  }
  // JSON "attnkit.verification/1".
  std::string verify(const std::string& golden) const {
    return detail::text_of(attnkit_model_verify, get(), detail::c_str(golden));
  }
  Ids tokenize(Side side, const std::string& text) const {
    Ids ids(2 * text.size() + 1);  // each word may be a mark and a token for each byte; normalisation may make more
    for (uint64_t n = ids.size();; n = ids.size()) {
      try {
        detail::call(attnkit_model_tokenize, get(), static_cast<uint32_t>(side), detail::c_str(text), ids.data(), &n);
        ids.resize(static_cast<size_t>(n));
        return ids;
      } catch (const Error&) {
        if (n <= ids.size()) throw;
        ids.resize(static_cast<size_t>(n));
      }
    }
  }
  std::string detokenize(Side side, std::span<const int32_t> ids) const {
    return detail::text_of(attnkit_model_detokenize, get(), static_cast<uint32_t>(side), ids.data(),
                           uint64_t{ids.size()});
  }
  // Teacher forcing into out, see attnkit_model_forward for its shape.  A side that the model lacks: an empty batch.
  void forward(const Batch& source, const Batch& target, const attn_tensor& out) const {
    run_forward(source, target, out);
  }
  void forward(const SpeechBatch& source, const Batch& target, const attn_tensor& out) const {
    run_forward(source, target, out);
  }
  Encoded encode(const Batch& source) const { return run_encode(source); }
  Encoded encode(const SpeechBatch& source) const { return run_encode(source); }
  // Returns the frames of samples, (n, features), see attnkit_model_features.
  std::vector<float> features(std::span<const float> samples) const {
    const attn_tensor in = detail::one_row(samples);
    uint64_t n = 0;
    detail::call(attnkit_model_features, get(), &in, nullptr, &n);
    const int64_t bins = info().features;
    std::vector<float> frames(static_cast<size_t>(n) * static_cast<size_t>(bins));
    const attn_tensor out = tensor(frames.data(), {1, static_cast<int64_t>(n), bins});
    if (n > 0) detail::call(attnkit_model_features, get(), &in, &out, &n);
    return frames;
  }
  // Like forward, for the sources of encoded.
  void decode(const Encoded& encoded, const Batch& target, const attn_tensor& out) const {
    const attn_tensor t = target.view();
    detail::call(attnkit_model_decode, get(), encoded.get(), &t, target.lengths.data(), &out);
  }
  // Into out, (heads, queries, keys); see attnkit_model_attention.  A side that the model lacks: nothing.
  void attention(uint32_t role, uint32_t layer, std::span<const int32_t> source, std::span<const int32_t> target,
                 const attn_tensor& out) const {
    run_attention(role, layer, source, target, out);
  }
  void attention(uint32_t role, uint32_t layer, std::span<const float> source, std::span<const int32_t> target,
                 const attn_tensor& out) const {
    run_attention(role, layer, source, target, out);
  }
  // All tensors, as read or as made from the seed: the bytes of a safetensors file.
  std::vector<std::byte> weights() const { return detail::bytes_of(attnkit_model_weights, get()); }
  // Greedy or, with more than one beam, beam search; beams 0: as in the manifest.  A decoder alone continues the text.
  std::string translate(const std::string& text, uint32_t beams = 0, uint32_t limit = 0) const;
  // The same for a model that takes speech.
  template <Samples S>
  std::string translate(const S& samples, uint32_t beams = 0, uint32_t limit = 0) const;
  // The same of many texts, up to `batch` of them decoded together; an error says of which text.
  std::vector<std::string> translate_all(std::span<const std::string> texts, uint32_t beams = 0, uint32_t limit = 0,
                                         size_t batch = 16) const;

 private:
  template <class Source>
  void run_forward(const Source& source, const Batch& target, const attn_tensor& out) const {
    const attn_tensor s = source.view(), t = target.view();
    detail::call(attnkit_model_forward, get(), source.rows() ? &s : nullptr, source.lengths.data(),
                 target.rows() ? &t : nullptr, target.lengths.data(), &out);
  }
  template <class T>
  void run_attention(uint32_t role, uint32_t layer, std::span<const T> source, std::span<const int32_t> target,
                     const attn_tensor& out) const {
    const attn_tensor s = detail::one_row(source), t = detail::one_row(target);
    detail::call(attnkit_model_attention, get(), role, layer, source.empty() ? nullptr : &s,
                 target.empty() ? nullptr : &t, &out);
  }
  template <class Source>
  Encoded run_encode(const Source& source) const {
    const attn_tensor s = source.view();
    Encoded encoded;
    encoded.make(attnkit_model_encode, get(), &s, source.lengths.data());
    return encoded;
  }
  template <class F, class... Args>
  void load(std::vector<Diagnostic>* warnings, F f, Args... args) {
    std::vector<Diagnostic> found;
    const attnkit_diagnose collect = [](uintptr_t list, const attnkit_diagnostic* d) {
      try {
        reinterpret_cast<std::vector<Diagnostic>*>(list)->push_back(
            {d->severity, d->area, d->code, d->line, d->column, d->message, d->help ? d->help : ""});
      } catch (...) {  // out of memory: the error itself still says that something is wrong
      }
    };
    try {
      make(f, args..., collect, reinterpret_cast<uintptr_t>(&found));
    } catch (const Error& e) {
      throw Error(e.code(), e.what(), e.where(), std::move(found));
    }
    if (warnings) *warnings = std::move(found);
  }
};

// One input being decoded.
class Session : public detail::Handle<attnkit_session, attnkit_session_destroy> {
 public:
  explicit Session(const Model& model, uint32_t rows = 0) {
    const attnkit_model_info info = model.info();
    max_length_ = static_cast<size_t>(info.max_length);
    rows_ = rows ? rows : info.beams;
    make(attnkit_session_create, model.get(), rows);
  }
  // More of the source; last: it is complete, </s> included.
  void read(const Ids& source, bool last = true) { run_read(detail::one_row<int32_t>(source), last); }
  template <Samples S>
  void read(const S& samples, bool last = true) {
    run_read(detail::one_row<float>(samples), last);
  }
  // Frames: a batch of one row.
  void read(const SpeechBatch& source, bool last = true) { run_read(source.view(), last); }
  // Reads a row of `sources` for each of different sessions and encodes them together; last: by session, empty: all are
  // complete.
  static void read_all(std::span<attnkit_session* const> sessions, const Batch& sources,
                       std::span<const uint32_t> last = {}) {
    run_read_all(sessions, sources, last);
  }
  static void read_all(std::span<attnkit_session* const> sessions, const SpeechBatch& sources,
                       std::span<const uint32_t> last = {}) {
    run_read_all(sessions, sources, last);
  }
  // Continues different sessions of one model together, each as generate does, until one of them has ended, or for so
  // many steps at most where steps is not 0.  Returns the ids of those that have ended, none of the others: these go on
  // where they are when they are given again, under the limit of their first call.
  static std::vector<Ids> generate_all(const Model& model, std::span<attnkit_session* const> sessions,
                                       uint32_t limit = 0, uint32_t steps = 0) {
    const auto width = static_cast<size_t>(model.info().max_length);
    const auto n = static_cast<uint32_t>(sessions.size());
    Ids ids(n * width);
    std::vector<uint64_t> lengths(n);
    detail::call(attnkit_sessions_generate, sessions.data(), n, std::min(limit, static_cast<uint32_t>(width)), steps,
                 ids.data(), uint64_t{width}, lengths.data());
    std::vector<Ids> made;
    for (size_t i = 0; i < n; ++i) {
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(i * width);
      made.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(lengths[i]));
    }
    return made;
  }
  // Returns bytes from which load continues, wherever the same model is.
  std::vector<std::byte> save() const { return detail::bytes_of(attnkit_session_save, get()); }
  static Session load(const Model& model, std::span<const std::byte> bytes) {
    Session session(static_cast<size_t>(model.info().max_length), 0);
    session.make(attnkit_session_load, model.get(), static_cast<const void*>(bytes.data()), uint64_t{bytes.size()});
    const std::string state = session.describe();
    session.rows_ = std::stoul(state.substr(state.find_first_of("0123456789", state.find("\"rows\""))));
    return session;
  }
  // Simultaneous decoding, see attnkit_session_simulate.  decide(const attnkit_stream_view&) gives ATTNKIT_READ, _WRITE
  // or _STOP; observe(const attnkit_stream_event&) sees every action.  An exception from either ends the call and is
  // thrown. ends: of the units in source; empty: each id is one.
  template <class Decide, class Observe>
  Ids simulate(const Ids& source, std::span<const int64_t> ends, Decide decide, Observe observe, uint32_t limit = 0) {
    return run_simulate(detail::one_row<int32_t>(source), ends, decide, observe, limit);
  }
  template <Samples S, class Decide, class Observe>
  Ids simulate(const S& samples, std::span<const int64_t> ends, Decide decide, Observe observe, uint32_t limit = 0) {
    return run_simulate(detail::one_row<float>(samples), ends, decide, observe, limit);
  }
  // Returns an independent copy of everything, which continues bitwise like this one.
  Session clone() const {
    Session copy(max_length_, rows_);
    copy.make(attnkit_session_clone, get());
    return copy;
  }
  // Row i becomes what row parents[i] was; one parent for each row.
  void reorder(std::span<const uint32_t> parents) {
    if (parents.size() != rows_)
      throw Error(ATTN_INVALID, std::to_string(parents.size()) + " parents for " + std::to_string(rows_) + " rows");
    detail::call(attnkit_session_reorder, get(), parents.data());
  }
  void set_length(double target_length) { detail::call(attnkit_session_set_length, get(), target_length); }
  Ids generate(uint32_t limit = 0) {
    Ids ids(max_length_);
    limit = std::min(limit, static_cast<uint32_t>(max_length_));
    uint64_t n = 0;
    detail::call(attnkit_session_generate, get(), limit, ids.data(), &n);
    ids.resize(static_cast<size_t>(n));
    return ids;
  }
  // Writes a prompt and draws tokens behind it, see attnkit_session_sample.  options.token is not used: on_token(id)
  // sees every token and ends the call by returning true; what it throws ends the call and is thrown.
  template <class OnToken>
  Ids sample(const Ids& prompt, attnkit_sample_options options, OnToken on_token) {
    struct Caller {
      OnToken& on_token;
      std::exception_ptr thrown;
    } caller{on_token, {}};
    options.struct_size = sizeof options;
    options.limit = std::min(options.limit, static_cast<uint32_t>(max_length_));
    options.token = [](uintptr_t context, int32_t id) -> uint32_t {
      auto& self = *reinterpret_cast<Caller*>(context);
      try {
        return self.on_token(id) ? 1 : 0;
      } catch (...) {
        self.thrown = std::current_exception();
        return 1;
      }
    };
    options.token_context = reinterpret_cast<uintptr_t>(&caller);
    Ids ids(max_length_);
    uint64_t n = 0;
    detail::call(attnkit_session_sample, get(), prompt.data(), uint64_t{prompt.size()}, &options, ids.data(), &n);
    if (caller.thrown) std::rethrow_exception(caller.thrown);
    ids.resize(static_cast<size_t>(n));
    return ids;
  }
  Ids sample(const Ids& prompt, const attnkit_sample_options& options) {
    return sample(prompt, options, [](int32_t) { return false; });
  }
  std::string describe() const { return detail::text_of(attnkit_session_describe, get()); }  // "attnkit.session/1"
  // Appends one token to a session of one row.  logits: room for all outputs, or empty.  The shortest way of a step.
  void step(int32_t token, std::span<float> logits = {}) {
    attnkit_session* const self = get();
    const attn_tensor in = tensor(&token, {1, 1}), out = tensor(logits.data(), {1, 1, std::ssize(logits)});
    detail::call(attnkit_session_write, &self, 1u, &in, nullptr, logits.empty() ? nullptr : &out);
  }
  // Appends a row of the batch to each row of different sessions.  logits: f32 (rows, length, outputs), or NULL.
  static void write(std::span<attnkit_session* const> sessions, const Batch& tokens, float* logits = nullptr,
                    int64_t outputs = 0) {
    const attn_tensor in = tokens.view(), out = tensor(logits, {tokens.rows(), tokens.length, outputs});
    detail::call(attnkit_session_write, sessions.data(), static_cast<uint32_t>(sessions.size()), &in,
                 tokens.lengths.data(), logits ? &out : nullptr);
  }

 private:
  // Carries exceptions around the C call in between.
  template <class Decide, class Observe>
  struct Simulation {
    Decide& decide;
    Observe& observe;
    std::exception_ptr thrown;
    template <class Call>
    void run(Call call) {
      try {
        if (!thrown) call();
      } catch (...) {
        thrown = std::current_exception();
      }
    }
    static uint32_t on_decide(uintptr_t context, const attnkit_stream_view* view) {
      auto& self = *reinterpret_cast<Simulation*>(context);
      uint32_t decision = ATTNKIT_STOP;
      self.run([&] { decision = self.decide(*view); });
      return decision;
    }
    static void on_event(uintptr_t context, const attnkit_stream_event* event) {
      auto& self = *reinterpret_cast<Simulation*>(context);
      self.run([&] { self.observe(*event); });
    }
  };
  void run_read(const attn_tensor& t, bool last) { detail::call(attnkit_session_read, get(), &t, last ? 1u : 0u); }
  template <class Sources>
  static void run_read_all(std::span<attnkit_session* const> sessions, const Sources& sources,
                           std::span<const uint32_t> last) {
    if (sources.rows() != std::ssize(sessions) || (!last.empty() && last.size() != sessions.size()))
      throw Error(ATTN_INVALID, std::to_string(sources.rows()) + " sources and " + std::to_string(last.size()) +
                                    " of last for " + std::to_string(sessions.size()) + " sessions");
    const attn_tensor in = sources.view();
    detail::call(attnkit_sessions_read, sessions.data(), static_cast<uint32_t>(sessions.size()), &in,
                 sources.lengths.data(), last.empty() ? nullptr : last.data());
  }
  template <class Decide, class Observe>
  Ids run_simulate(const attn_tensor& t, std::span<const int64_t> ends, Decide& decide, Observe& observe,
                   uint32_t limit) {
    Simulation<Decide, Observe> both{decide, observe, {}};
    using Both = decltype(both);
    limit = std::min(limit, static_cast<uint32_t>(max_length_));
    const auto context = reinterpret_cast<uintptr_t>(&both);
    const attnkit_stream_options options{
        sizeof options, limit, Both::on_decide, context, Both::on_event, context, ends.empty() ? nullptr : ends.data(),
        ends.size()};
    Ids ids(max_length_);
    uint64_t n = 0;
    detail::call(attnkit_session_simulate, get(), &t, &options, ids.data(), &n);
    if (both.thrown) std::rethrow_exception(both.thrown);
    ids.resize(static_cast<size_t>(n));
    return ids;
  }
  Session(size_t max_length, size_t rows) : max_length_(max_length), rows_(rows) {}
  size_t max_length_, rows_;
};

inline std::string Model::translate(const std::string& text, uint32_t beams, uint32_t limit) const {
  return translate_all({&text, 1}, beams, limit).front();
}

inline std::vector<std::string> Model::translate_all(std::span<const std::string> texts, uint32_t beams, uint32_t limit,
                                                     size_t batch) const {
  if (batch == 0) throw Error(ATTN_INVALID, "batch 0: it must be 1 or more");
  const attnkit_model_info i = info();
  const uint32_t rows = beams ? beams : i.beams;
  const bool pair = i.kind == ATTNKIT_ENCODER_DECODER;
  std::vector<std::string> made(texts.size());
  std::vector<std::pair<size_t, Session>> going;  // by the number of the text
  // Says of which text an error is that a call for the sessions from `first` on has.
  const auto named = [&](size_t first, const auto& call) {
    try {
      call();
    } catch (const Error& e) {
      const bool single = going.size() - first == 1;
      if (texts.size() == 1 || (e.where() < 0 && !single)) throw;
      const size_t at = single ? 0 : static_cast<size_t>(e.where());
      const std::string message = e.what(), before = "session " + std::to_string(at) + ": ";
      throw Error(e.code(), "text " + std::to_string(going[first + at].first) + ": " +
                                message.substr(message.starts_with(before) ? before.size() : 0));
    }
  };
  for (size_t next = 0; next < texts.size() || !going.empty();) {
    const size_t before = going.size();
    std::vector<Ids> sources;
    for (; next < texts.size() && going.size() < batch; ++next) {
      going.emplace_back(next, Session(*this, rows));
      named(going.size() - 1, [&] {
        Ids ids = tokenize(pair ? Side::source : Side::target, texts[next]);
        attnkit_session* const self = going.back().second.get();
        if (!pair && i.begin_id >= 0) ids.insert(ids.begin(), i.begin_id);
        if (!pair) return Session::write({&self, 1}, Batch(std::vector<Ids>(rows, ids)));
        ids.push_back(i.end_id);
        sources.push_back(std::move(ids));
      });
    }
    std::vector<attnkit_session*> handles;
    for (const auto& [text, session] : going) handles.push_back(session.get());
    if (!sources.empty()) named(before, [&] { Session::read_all(std::span(handles).subspan(before), Batch(sources)); });
    std::vector<Ids> ended;
    named(0, [&] { ended = Session::generate_all(*this, handles, limit); });
    for (size_t s = 0; s < ended.size(); ++s)
      if (!ended[s].empty()) made[going[s].first] = detokenize(Side::target, ended[s]);
    size_t at = 0;
    std::erase_if(going, [&](const auto&) { return !ended[at++].empty(); });
  }
  return made;
}

template <Samples S>
std::string Model::translate(const S& samples, uint32_t beams, uint32_t limit) const {
  Session session(*this, beams);
  session.read(samples);
  return detokenize(Side::target, session.generate(limit));
}

// One mechanism by itself; see attnkit_block_create.
class Block : public detail::Handle<attnkit_block, attnkit_block_destroy> {
 public:
  Block(const Runtime& r, const std::string& mechanism, const attn_block& where, const std::string& options = "") {
    make(attnkit_block_create, r.get(), detail::c_str(mechanism), &where, detail::c_str(options));
  }
  std::span<const attn_port* const> ports() const {
    uint32_t n = 0;
    const attn_port* const* all = attnkit_block_ports(get(), &n);
    return {all, n};
  }
  void fill(uint32_t port, uint64_t seed, const attn_tensor& t) const {
    detail::call(attnkit_block_fill, get(), port, seed, &t);
  }
  attn_info plan(const attn_request& request) const {
    attn_info info{};
    info.struct_size = sizeof info;
    detail::call(attnkit_block_plan, get(), &request, &info);
    return info;
  }
  void run(const attn_request& request, const attn_run& r) const {
    detail::call(attnkit_block_run, get(), &request, &r);
  }
  void backward(const attn_request& request, const attn_grad& grad) const {
    detail::call(attnkit_block_backward, get(), &request, &grad);
  }
};

}  // namespace attnkit
#endif
#endif
