// attnkit.h for C++20: handles that free themselves, failures as exceptions, ids and logits as vectors; header only.
//
//   attnkit::Runtime runtime;
//   attnkit::Model model(runtime, "model.toml");
//   std::cout << model.translate("two hundred and forty-one euros") << '\n';
//
// Shapes, threads and lifetimes are those of attnkit.h; get() gives the C handle for what has no method here.  Objects
// are moved, not copied, and may be destroyed in any order.  Every failure throws attnkit::Error.
#ifndef ATTNKIT_HPP
#define ATTNKIT_HPP
#include <algorithm>
#include <attnkit/handle.hpp>
#include <attnkit/sequences.hpp>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <vector>

namespace attnkit::inline cpp1 {

// Threads and loaded plugins.  threads 0: one per processor.  plugin_path: folders separated by ':', searched first.
class Runtime : public detail::Handle<attnkit_runtime, attnkit_runtime_destroy> {
 public:
  explicit Runtime(uint32_t threads = 0, const std::string& plugin_path = "") {
    const attnkit_runtime_options options{sizeof options, threads, detail::c_str(plugin_path), 0, 0};
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
  Ids tokenize(Side side, const std::string& text) const {
    Ids ids(2 * text.size() + 1);  // each word may be a mark and a token for each byte
    uint64_t n = ids.size();
    detail::call(attnkit_model_tokenize, get(), static_cast<uint32_t>(side), detail::c_str(text), ids.data(), &n);
    ids.resize(static_cast<size_t>(n));
    return ids;
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
  // The frames of samples, (n, features), see attnkit_model_features.
  std::vector<float> features(std::span<const float> samples) const {
    const attn_tensor in = tensor(samples.data(), {1, static_cast<int64_t>(samples.size())});
    uint64_t n = 0;
    detail::call(attnkit_model_features, get(), &in, nullptr, &n);
    const int64_t bins = info().features;
    std::vector<float> frames(static_cast<size_t>(n) * static_cast<size_t>(bins));
    const attn_tensor out = tensor(frames.data(), {1, static_cast<int64_t>(n), bins});
    if (n > 0) detail::call(attnkit_model_features, get(), &in, &out, &n);
    return frames;
  }
  // What forward gives for the sources of encoded.
  void decode(const Encoded& encoded, const Batch& target, const attn_tensor& out) const {
    const attn_tensor t = target.view();
    detail::call(attnkit_model_decode, get(), encoded.get(), &t, target.lengths.data(), &out);
  }
  // Greedy or, with more than one beam, beam search; beams 0: as in the manifest.  A decoder alone continues the text.
  std::string translate(const std::string& text, uint32_t beams = 0, uint32_t limit = 0) const;
  // The same for a model that takes speech.
  template <Samples S>
  std::string translate(const S& samples, uint32_t beams = 0, uint32_t limit = 0) const;

 private:
  template <class Source>
  void run_forward(const Source& source, const Batch& target, const attn_tensor& out) const {
    const attn_tensor s = source.view(), t = target.view();
    detail::call(attnkit_model_forward, get(), source.rows() ? &s : nullptr, source.lengths.data(),
                 target.rows() ? &t : nullptr, target.lengths.data(), &out);
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
  explicit Session(const Model& model, uint32_t rows = 0) : max_length_(static_cast<size_t>(model.info().max_length)) {
    make(attnkit_session_create, model.get(), rows);
  }
  // More of the source; last: it is complete, </s> included.
  void read(const Ids& source, bool last = true) {
    const attn_tensor t = tensor(source.data(), {1, static_cast<int64_t>(source.size())});
    detail::call(attnkit_session_read, get(), &t, last ? 1u : 0u);
  }
  template <Samples S>
  void read(const S& samples, bool last = true) {
    const attn_tensor t = tensor_of(samples);
    detail::call(attnkit_session_read, get(), &t, last ? 1u : 0u);
  }
  // Frames: a batch of one row.
  void read(const SpeechBatch& source, bool last = true) {
    const attn_tensor t = source.view();
    detail::call(attnkit_session_read, get(), &t, last ? 1u : 0u);
  }
  // Bytes to continue from, by load, wherever the same model is.
  std::vector<std::byte> save() const {
    detail::Handle<attnkit_blob, attnkit_blob_destroy> blob;
    blob.make(attnkit_session_save, get());
    uint64_t n = 0;
    const auto* data = static_cast<const std::byte*>(attnkit_blob_data(blob.get(), &n));
    return {data, data + n};
  }
  static Session load(const Model& model, std::span<const std::byte> bytes) {
    Session session(static_cast<size_t>(model.info().max_length));
    session.make(attnkit_session_load, model.get(), static_cast<const void*>(bytes.data()), uint64_t{bytes.size()});
    return session;
  }
  // Simultaneous decoding, see attnkit_session_simulate.  decide(const attnkit_stream_view&) gives ATTNKIT_READ, _WRITE
  // or _STOP; observe(const attnkit_stream_event&) sees every action.  What either throws ends the call and is thrown.
  // ends: of the units in source; empty: each id is one.
  template <class Decide, class Observe>
  Ids simulate(const Ids& source, std::span<const int64_t> ends, Decide decide, Observe observe, uint32_t limit = 0) {
    return run_simulate(tensor(source.data(), {1, static_cast<int64_t>(source.size())}), ends, decide, observe, limit);
  }
  template <Samples S, class Decide, class Observe>
  Ids simulate(const S& samples, std::span<const int64_t> ends, Decide decide, Observe observe, uint32_t limit = 0) {
    return run_simulate(tensor_of(samples), ends, decide, observe, limit);
  }
  // An independent copy of everything, which continues bitwise like this one.
  Session clone() const {
    Session copy(max_length_);
    copy.make(attnkit_session_clone, get());
    return copy;
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
  std::string describe() const { return detail::text_of(attnkit_session_describe, get()); }  // "attnkit.session/1"
  // Appends a row of the batch to each row of different sessions.  logits: f32 (rows, length, outputs), or NULL.
  static void write(std::span<attnkit_session* const> sessions, const Batch& tokens, float* logits = nullptr,
                    int64_t outputs = 0) {
    const attn_tensor in = tokens.view(), out = tensor(logits, {tokens.rows(), tokens.length, outputs});
    detail::call(attnkit_session_write, sessions.data(), static_cast<uint32_t>(sessions.size()), &in,
                 tokens.lengths.data(), logits ? &out : nullptr);
  }

 private:
  // Carries exceptions around the C call between.
  template <class Decide, class Observe>
  struct Simulation {
    Decide& decide;
    Observe& observe;
    std::exception_ptr thrown;
    static uint32_t on_decide(uintptr_t context, const attnkit_stream_view* view) {
      auto& self = *reinterpret_cast<Simulation*>(context);
      try {
        if (!self.thrown) return self.decide(*view);
      } catch (...) {
        self.thrown = std::current_exception();
      }
      return ATTNKIT_STOP;
    }
    static void on_event(uintptr_t context, const attnkit_stream_event* event) {
      auto& self = *reinterpret_cast<Simulation*>(context);
      try {
        if (!self.thrown) self.observe(*event);
      } catch (...) {
        self.thrown = std::current_exception();
      }
    }
  };
  static attn_tensor tensor_of(std::span<const float> samples) {
    return tensor(samples.data(), {1, static_cast<int64_t>(samples.size())});
  }
  template <class Decide, class Observe>
  Ids run_simulate(const attn_tensor& t, std::span<const int64_t> ends, Decide& decide, Observe& observe,
                   uint32_t limit) {
    Simulation<Decide, Observe> both{decide, observe, {}};
    using Both = decltype(both);
    limit = std::min(limit, static_cast<uint32_t>(max_length_));
    const auto context = reinterpret_cast<uintptr_t>(&both);
    const attnkit_stream_options options{sizeof options, limit,   Both::on_decide, context,
                                         Both::on_event, context, ends.data(),     ends.size()};
    Ids ids(max_length_);
    uint64_t n = 0;
    detail::call(attnkit_session_simulate, get(), &t, &options, ids.data(), &n);
    if (both.thrown) std::rethrow_exception(both.thrown);
    ids.resize(static_cast<size_t>(n));
    return ids;
  }
  explicit Session(size_t max_length) : max_length_(max_length) {}
  size_t max_length_;
};

inline std::string Model::translate(const std::string& text, uint32_t beams, uint32_t limit) const {
  const attnkit_model_info i = info();
  const uint32_t rows = beams ? beams : i.beams;
  const bool pair = i.kind == ATTNKIT_ENCODER_DECODER;
  Session session(*this, rows);
  attnkit_session* const self = session.get();
  Ids ids = tokenize(pair ? Side::source : Side::target, text);
  ids.insert(pair ? ids.end() : ids.begin(), pair ? i.end_id : i.begin_id);
  pair ? session.read(ids) : Session::write({&self, 1}, Batch(std::vector<Ids>(rows, ids)));
  return detokenize(Side::target, session.generate(limit));
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
};

}  // namespace attnkit::inline cpp1
#endif
