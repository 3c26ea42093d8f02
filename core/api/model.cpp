// attnkit.h: models.
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/api/describe.hpp"
#include "core/api/handles.hpp"
#include "core/base/file.hpp"

using namespace attnkit::core;

namespace {

void report(const Diagnostics& diagnostics, attnkit_diagnose diagnose, uintptr_t context) {
  if (!diagnose) return;
  for (const Diagnostic& d : diagnostics.sorted()) {
    const attnkit_diagnostic out{sizeof(attnkit_diagnostic),
                                 d.severity,
                                 d.area,
                                 d.code,
                                 d.place.line,
                                 d.place.column,
                                 d.message.c_str(),
                                 d.help.empty() ? nullptr : d.help.c_str()};
    diagnose(context, &out);
  }
}

[[noreturn]] void fail_with_first(const Diagnostics& diagnostics) {
  for (const Diagnostic& d : diagnostics.sorted())
    if (d.severity == ATTNKIT_ERROR) fail(ATTN_INVALID, "{}:{}: {}", d.place.line, d.place.column, d.message);
  fail(ATTN_INTERNAL, "loading failed without a diagnostic");
}

void load(attnkit_runtime* runtime, const std::string& toml, const std::string& dir, attnkit_diagnose diagnose,
          uintptr_t context, attnkit_model** model) {
  Diagnostics diagnostics;
  std::shared_ptr<const Model> loaded = Model::load(runtime->runtime, toml, dir, diagnostics);
  report(diagnostics, diagnose, context);
  if (!loaded) fail_with_first(diagnostics);
  if (model) *model = new attnkit_model{std::move(loaded)};
}

const Model& of(const attnkit_model* model) {
  require({{model, "model"}});
  return *model->model;
}

const Tokenizer& vocabulary(const Model& model, uint32_t side) {
  if (side > 1) fail(ATTN_INVALID, "side {}: 0 is the source, 1 the target", side);
  const Tokenizer* v = model.vocabulary(side == 1);
  if (!v && side == 0 && model.frontend())
    fail(ATTN_INVALID, "the source of this model is speech, not text: it has no tokens");
  if (!v) fail(ATTN_INVALID, "this model has no {} side", side ? "target" : "source");
  return *v;
}

}  // namespace

int32_t attnkit_model_create(attnkit_runtime* runtime, const char* toml, const char* dir, attnkit_diagnose diagnose,
                             uintptr_t context, attnkit_model** model, attn_error* err) {
  return guard(err, [&] {
    require({{runtime, "runtime"}, {toml, "toml"}, {dir, "dir"}});
    // weights_file is read again later, in whatever folder the process is then.
    const std::filesystem::path folder = *dir ? std::filesystem::absolute(dir) : std::filesystem::current_path();
    load(runtime, toml, folder.string(), diagnose, context, model);
  });
}

int32_t attnkit_model_open(attnkit_runtime* runtime, const char* path, attnkit_diagnose diagnose, uintptr_t context,
                           attnkit_model** model, attn_error* err) {
  return guard(err, [&] {
    require({{runtime, "runtime"}, {path, "path"}});
    const std::vector<std::byte> bytes = read_file(path, 1 << 20);
    const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
    load(runtime, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), folder.string(), diagnose,
         context, model);
  });
}

void attnkit_model_destroy(attnkit_model* model) { delete model; }

int32_t attnkit_model_get_info(const attnkit_model* model, attnkit_model_info* info, attn_error* err) {
  return guard(err, [&] {
    require({{info, "info"}});
    require_size(*info, "info", offsetof(attnkit_model_info, source_vocab));
    const Model& m = of(model);
    attnkit_model_info full{};
    full.struct_size = info->struct_size;
    full.kind = m.manifest().kind == ModelKind::encoder   ? ATTNKIT_ENCODER
                : m.manifest().kind == ModelKind::decoder ? ATTNKIT_DECODER
                                                          : ATTNKIT_ENCODER_DECODER;
    const Tokenizer *source = m.vocabulary(false), *target = m.vocabulary(true);
    full.source_vocab = source ? source->size() : 0;
    full.target_vocab = target ? target->size() : 0;
    full.outputs = static_cast<int32_t>(m.outputs());
    full.max_length = m.manifest().max_length;
    const Tokenizer* any = target ? target : source;
    full.begin_id = any ? any->begin_id() : -1;
    full.end_id = any ? any->end_id() : -1;
    full.beams = static_cast<uint32_t>(m.manifest().beams);
    full.parameters = static_cast<uint64_t>(m.parameters());
    full.state_bytes = m.carried_bytes();
    for (const Block* block : m.blocks())
      if (block->streams()) full.state_bytes += block->state_bytes(block->max_length());
    if (const Frontend* frontend = m.frontend()) {
      const FbankSpec& features = frontend->table().features;
      full.sample_rate = features.sample_rate;
      full.frame_length = static_cast<int32_t>(features.frame_length());
      full.frame_shift = static_cast<int32_t>(features.frame_shift());
      full.features = features.bins;
      full.subsampling = static_cast<int32_t>(frontend->table().subsampling());
    }
    std::memcpy(info, &full, std::min<size_t>(info->struct_size, sizeof full));
  });
}

int32_t attnkit_model_weights(const attnkit_model* model, attnkit_blob** safetensors, attn_error* err) {
  return guard(err, [&] {
    require({{safetensors, "safetensors"}});
    *safetensors = new attnkit_blob{of(model).weights()};
  });
}

int32_t attnkit_model_describe(const attnkit_model* model, const int64_t* lengths, uint32_t n, attnkit_text** json,
                               attn_error* err) {
  return guard(err, [&] {
    require({{json, "json"}});
    if (n > 0) require({{lengths, "lengths"}});
    *json = new attnkit_text{describe_model(of(model), std::vector<int64_t>(lengths, lengths + n))};
  });
}

namespace {
void require_data(const attn_tensor& source) {
  const bool empty = std::count(source.shape, source.shape + std::min(source.ndim, 4u), 0) > 0;
  if (!source.data && !empty) fail(ATTN_INVALID, "source has no data");
}

// Those of the model's sides, and no other.
void require_sides(const Model& m, const attn_tensor* source, const attn_tensor* target) {
  if (m.has_encoder() && !source) fail(ATTN_INVALID, "source must not be NULL: this model has an encoder");
  if (m.has_decoder() && !target) fail(ATTN_INVALID, "target must not be NULL: this model has a decoder");
  if (!m.has_encoder() && source) fail(ATTN_INVALID, "source must be NULL: this model has no encoder");
  if (!m.has_decoder() && target) fail(ATTN_INVALID, "target must be NULL: this model has no decoder");
  if (source) require_data(*source);
}
}  // namespace

int32_t attnkit_model_forward(const attnkit_model* model, const attn_tensor* source, const int32_t* source_len,
                              const attn_tensor* target, const int32_t* target_len, const attn_tensor* out,
                              attn_error* err) {
  return guard(err, [&] {
    const Model& m = of(model);
    require_sides(m, source, target);
    const SourceBatch s = to_source(m, source, source_len);
    const Ids t = to_ids(target, target_len, "target");
    m.forward(s, t, to_floats(out, m.output_shape(s, t), "out"));
  });
}

int32_t attnkit_model_encode(const attnkit_model* model, const attn_tensor* source, const int32_t* source_len,
                             attnkit_encoded** encoded, attn_error* err) {
  return guard(err, [&] {
    const Model& m = of(model);
    require({{source, "source"}, {encoded, "encoded"}});
    require_data(*source);
    *encoded = new attnkit_encoded{m.encode(to_source(m, source, source_len))};
  });
}

void attnkit_encoded_destroy(attnkit_encoded* encoded) { delete encoded; }

int32_t attnkit_model_decode(const attnkit_model* model, const attnkit_encoded* encoded, const attn_tensor* target,
                             const int32_t* target_len, const attn_tensor* out, attn_error* err) {
  return guard(err, [&] {
    const Model& m = of(model);
    require({{encoded, "encoded"}, {target, "target"}});
    const Ids t = to_ids(target, target_len, "target");
    m.check_decode(*encoded->encoded, t);
    m.decode(*encoded->encoded, t, to_floats(out, {t.batch, t.length, m.outputs()}, "out"));
  });
}

int32_t attnkit_model_attention(const attnkit_model* model, uint32_t role, uint32_t layer, const attn_tensor* source,
                                const attn_tensor* target, const attn_tensor* out, attn_error* err) {
  return guard(err, [&] {
    const Model& m = of(model);
    require_sides(m, source, target);
    const SourceBatch s = to_source(m, source, nullptr);
    const Ids t = to_ids(target, nullptr, "target");
    const bool decoder = role == ATTN_DECODER_SELF || role == ATTN_DECODER_CROSS;
    const int layers = decoder                     ? m.manifest().decoder.layers
                       : role == ATTN_ENCODER_SELF ? m.manifest().encoder.layers
                                                   : 0;
    if (layer < 1 || static_cast<int64_t>(layer) > layers || (role == ATTN_DECODER_CROSS && !m.has_encoder()))
      fail(ATTN_INVALID, "this model has no block of role {} in layer {}", role, layer);
    if ((m.has_encoder() && s.batch != 1) || (m.has_decoder() && t.batch != 1))
      fail(ATTN_INVALID, "a batch of {}: attention is shown of one input at a time, so give a batch of 1",
           m.has_encoder() && s.batch != 1 ? s.batch : t.batch);
    if (m.has_encoder()) m.check_source(s);
    const int64_t rows = m.source_rows(s);
    const int64_t queries = decoder ? t.length : rows, keys = role == ATTN_DECODER_SELF ? t.length : rows;
    const Probe probe{role, static_cast<int>(layer), to_floats(out, {m.manifest().heads, queries, keys}, "out")};
    m.forward(s, t, nullptr, &probe);
  });
}

int32_t attnkit_model_tokenize(const attnkit_model* model, uint32_t side, const char* text, int32_t* ids, uint64_t* n,
                               attn_error* err) {
  return guard(err, [&] {
    require({{text, "text"}, {n, "n"}});
    const std::vector<int32_t> made = vocabulary(of(model), side).tokenize(text);
    const bool fits = made.size() <= *n;
    if (ids && fits) std::copy(made.begin(), made.end(), ids);
    const uint64_t room = *n;
    *n = made.size();
    if (!ids || !fits) fail(ATTN_INVALID, "the text has {} tokens, there is room for {}", made.size(), ids ? room : 0);
  });
}

int32_t attnkit_model_detokenize(const attnkit_model* model, uint32_t side, const int32_t* ids, uint64_t n,
                                 attnkit_text** text, attn_error* err) {
  return guard(err, [&] {
    require({{text, "text"}});
    if (n > 0) require({{ids, "ids"}});
    *text = new attnkit_text{vocabulary(of(model), side).detokenize(ids, n)};
  });
}

int32_t attnkit_model_features(const attnkit_model* model, const attn_tensor* samples, const attn_tensor* frames,
                               uint64_t* n, attn_error* err) {
  return guard(err, [&] {
    const Model& m = of(model);
    require({{samples, "samples"}, {n, "n"}});
    const Frontend* frontend = m.frontend();
    if (!frontend) fail(ATTN_INVALID, "this model takes text, not speech: it has no features");
    const SourceBatch source = to_source(m, samples, nullptr);
    if (source.kind != SourceKind::samples || source.batch != 1)
      fail(ATTN_INVALID, "samples must be one row (1, length) of float32");
    check_speech(source);
    frontend->check_whole(source.kind, source.length);
    const int64_t count = frontend->frames(source.kind, source.length);
    if (frames) {
      float* out = to_floats(frames, {1, count, frontend->table().features.bins}, "frames");
      if (count > 0) frontend->features(source.speech, source.length, out);
    }
    *n = static_cast<uint64_t>(count);
  });
}
