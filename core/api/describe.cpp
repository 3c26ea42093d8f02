// Descriptions as JSON: the machine, plugins and their abilities; a model's grid and costs; a session.
#include "core/api/describe.hpp"

#include <nlohmann/json.hpp>

#include "core/base/first_load_cache.hpp"
#include "core/base/text.hpp"
#include "core/manifest/manifest.hpp"
#include "core/model/dense/weights.hpp"
#include "core/plugin/probe.hpp"

namespace attnkit::core {
namespace {

using Json = nlohmann::ordered_json;

const char* device_name(int32_t device) { return device == 2 ? "cuda" : "cpu"; }

// The features that kernels choose by.
Json cpu_features() {
  Json features = Json::array();
  [[maybe_unused]] const auto add = [&](const char* name, bool there) {
    if (there) features.push_back(name);
  };
#if defined(__x86_64__)
  add("sse4.2", __builtin_cpu_supports("sse4.2"));
  add("avx", __builtin_cpu_supports("avx"));
  add("avx2", __builtin_cpu_supports("avx2"));
  add("fma", __builtin_cpu_supports("fma"));
  add("avx_vnni", has_avx_vnni());
  add("avx512f", __builtin_cpu_supports("avx512f"));
  add("avx512bw", __builtin_cpu_supports("avx512bw"));
  add("avx512vl", __builtin_cpu_supports("avx512vl"));
  add("avx512vnni", __builtin_cpu_supports("avx512vnni"));
#elif defined(__aarch64__)
  add("asimd", true);
  add("asimddp", has(ByteKernel::dot));
#endif
  return features;
}

// Of an option in a plugin's table, or as a manifest has it.
template <class Value>
Json value_of(const Value& value) {
  return value.type == ATTN_INT     ? Json(value.i)
         : value.type == ATTN_FLOAT ? Json(value.f)
         : value.type == ATTN_BOOL  ? Json(value.i != 0)
                                    : Json(value.s);
}

Json option_of(const attn_option& option) {
  constexpr const char* types[] = {"", "int", "float", "bool", "text"};
  const bool text = option.fallback.type == ATTN_TEXT;
  Json out = {{"name", option.name},
              {"type", types[option.fallback.type]},
              {"default", text ? Json(clean_line(option.fallback.s)) : value_of(option.fallback)}};
  if (option.min != option.max) {
    const bool whole = option.fallback.type == ATTN_INT;
    out["min"] = whole ? Json(static_cast<int64_t>(option.min)) : Json(option.min);
    out["max"] = whole ? Json(static_cast<int64_t>(option.max)) : Json(option.max);
  }
  for (uint32_t i = 0; i < option.n_choices; ++i) out["choices"].push_back(clean_line(option.choices[i]));
  out["doc"] = clean_line(option.doc);
  return out;
}

Json plugin_of(const Plugin& plugin) {
  const attn_plugin& table = plugin.table;
  Json out = {{"name", plugin.name},
              {"device", device_name(table.device_type)},
              {"file", plugin.path},
              {"abi_minor", table.abi_minor},
              {"summary", clean_line(table.summary)},
              {"citation", clean_line(table.citation)},
              {"state_revision", clean_line(table.state_revision)},
              {"options", Json::array()},
              {"places", probe(plugin)}};
  for (uint32_t i = 0; i < table.n_options; ++i) out["options"].push_back(option_of(*table.options[i]));
  return out;
}

Json skipped_of(const Registry& registry) {
  Json out = Json::array();
  for (const auto& file : registry.skipped()) out.push_back({{"path", file.path}, {"reason", file.reason}});
  return out;
}

}  // namespace

std::string list_plugins(const Registry& registry) {
  Json out = {{"schema", "attnkit.plugin-list/1"}, {"plugins", Json::array()}, {"skipped", skipped_of(registry)}};
  for (const auto& plugin : registry.plugins())
    out["plugins"].push_back(
        {{"name", plugin->name}, {"device", device_name(plugin->table.device_type)}, {"file", plugin->path}});
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string describe_runtime(const Registry& registry, const Threads& threads, int32_t device_type) {
  Json out = {{"schema", "attnkit.runtime/1"},
              {"version", ATTNKIT_VERSION},
              {"abi", {{"major", 1}, {"minor", ATTN_ABI_MINOR}}},
              {"cpu_features", cpu_features()},
              {"threads", threads.workers()},
              {"device", device_name(device_type)},
              {"search_path", registry.folders()},
              {"first_load", {{"program", registry.first_load_program()}, {"cache", first_load_cache()}}},
              {"plugins", Json::array()},
              {"skipped", skipped_of(registry)}};
  for (const auto& plugin : registry.plugins()) out["plugins"].push_back(plugin_of(*plugin));
  // File names and plugins' texts may be no UTF-8.
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

namespace {

Json options_of(const Block& block) {
  Json options = Json::object();
  const attn_plugin& table = block.mechanism().plugin().table;
  for (uint32_t i = 0; i < table.n_options; ++i)
    options[table.options[i]->name] = value_of(block.choice().options.at(i));
  return options;
}

// Bytes and flops at one length.  Streaming figures are of one row that has seen `length` tokens and takes one more.
Json costs_of(const Block& block, int64_t length, uint32_t workers) {
  Json cost = {{"length", length}};
  const uint32_t role = block.choice().role;
  const bool streams = role != ATTN_ENCODER_SELF || block.streams();
  try {
    const attn_info whole = block.plan_whole(workers, 1, length, length).info();
    cost["flops"] = whole.flops;
    cost["scratch_bytes"] = whole.scratch_bytes;
    cost["state_bytes"] = streams ? block.state_bytes(length) : 0;
    if (streams) {
      const int64_t keys = role == ATTN_DECODER_CROSS ? 0 : 1;
      cost["step_flops"] = block.plan_stream(workers, 1, 1, keys, length + keys).info().flops;
    }
  } catch (const Error& e) {
    if (e.code() == ATTN_NO_MEMORY) throw;
    cost["refused"] = e.what();
  }
  return cost;
}

Json block_json(const Manifest& manifest, const Block& block, const std::vector<int64_t>& lengths, uint32_t workers) {
  const BlockChoice& c = block.choice();
  const uint32_t totals = total_flags(manifest, c);
  Json j = {{"block", block_path(c.role, c.layer)},
            {"role", role_name(c.role)},
            {"layer", c.layer},
            {"mechanism", c.mechanism},
            {"options", options_of(block)},
            {"toml", use_text(block.mechanism().plugin(), c.options)},
            {"given", c.given},
            {"replays", c.replays},
            {"causal", block.mechanism().block().causal == 1},
            {"knows_q_total", (totals & ATTN_KNOWS_Q_TOTAL) != 0},
            {"knows_k_total", (totals & ATTN_KNOWS_K_TOTAL) != 0},
            {"decided", {{"line", c.decided.line}, {"column", c.decided.column}}},
            {"parameters", block.parameters()},
            {"costs", Json::array()}};
  for (int64_t length : lengths) j["costs"].push_back(costs_of(block, length, workers));
  return j;
}

// Of one source and one target of that length; no flops where a block refuses it, 64 bits do not hold them, or sources
// have a length of their own.
Json costs_of(const Model& model, const Json& blocks, size_t i, int64_t length) {
  Json cost = {{"length", length}};
  if (model.frontend() && model.frontend()->whole()) return cost;
  __int128 flops = 2 * model.multiply_adds(length, length);
  for (const Json& block : blocks) {
    const Json& of = block["costs"][i];
    if (!of.contains("flops")) return cost;
    flops += of["flops"].get<uint64_t>();
  }
  if (flops <= UINT64_MAX) cost["flops"] = static_cast<uint64_t>(flops);
  return cost;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json ties_json(const Manifest& m) {
  if (m.tied.empty()) return false;
  return m.tied == std::set<std::string>{"target", "output"} ? Json(true) : Json(m.tied);
}

Json gpu_json(const Device* device) {
  if (!device) return {};
  return {{"name", device->name()}, {"library", file_of(device->table())}};
}

Json head_json(const Manifest& m) {
  if (m.head == HeadType::lm) return {{"type", "lm"}};
  if (m.head == HeadType::embedding)
    return {{"type", "embedding"},
            {"pool", m.pool == Pool::mean ? "mean" : "first"},
            {"of", text_or_null(m.pool_of)},
            {"normalise", m.normalise},
            {"pooler", m.pooler}};
  return {{"type", "classifier"},
          {"classes", m.classes},
          {"pool", m.pool == Pool::mean ? "mean" : "first"},
          {"of", text_or_null(m.pool_of)},
          {"hidden", m.head_hidden}};
}

Json stream_json(const StreamTable& stream) {
  return {{"policy", stream.policy == StreamPolicy::offline ? "offline" : "wait-k"},
          {"k", stream.k},
          {"pre_decision", stream.pre_decision},
          {"replay", stream.replay}};
}

Json speech_json(const Frontend& frontend) {
  const SpeechTable& s = frontend.table();
  const FbankSpec& f = s.features;
  return {{"features",
           {{"type", frontend.whole() ? "log_mel" : "fbank"},
            {"frames", frontend.whole() ? Json(s.frames) : Json()},
            {"sample_rate", f.sample_rate},
            {"bins", f.bins},
            {"window_ms", f.window_ms},
            {"shift_ms", f.shift_ms}}},
          {"frontend",
           {{"type", s.frontend == Frontends::conv ? "conv" : "centred"},
            {"layers", s.layers},
            {"kernel", s.kernel},
            {"stride", s.stride},
            {"channels", s.channels},
            {"parameters", frontend.parameters()}}},
          {"first_row_samples", frontend.end_of_row(SourceKind::samples, 0)},
          {"row_ms", 1000.0 * static_cast<double>(s.subsampling() * f.frame_shift()) / f.sample_rate}};
}

// The length of the speech that was read, and of the part after the start of the next row of the encoder.
Json speech_json(const Frontend& frontend, const Session::Source& source) {
  const bool frames = source.kind == SourceKind::frames;
  const int64_t row = frontend.table().subsampling() * (frames ? 1 : frontend.table().features.frame_shift());
  return {{"unit", unit_name(frames ? SourceKind::frames : SourceKind::samples)},
          {"read", source.units},
          {"seconds", frontend.seconds(source.kind, source.units)},
          {"waiting", source.complete ? 0 : source.units - source.length * row}};
}

Json length_json(const Model& model) {
  const Manifest& m = model.manifest();
  if (m.predict == Predict::none) return {};
  Json j = {{"predict", predict_name(m.predict)}};
  if (!m.length_file.empty()) j["file"] = m.length_file;
  if (model.length()) model.length()->describe(j);
  j["needed_by"] = Json::array();
  for (const Block* block : model.blocks())
    if (block->needs_target(1, block->choice().role == ATTN_DECODER_SELF ? 1 : 0))
      j["needed_by"].push_back(block->path());
  return j;
}

Json decode_json(const Manifest& m) {
  return {{"beams", m.beams},
          {"length_penalty", m.length_penalty},
          {"early_stop", early_stop_name(m.early_stop)},
          {"limit", m.limit},
          {"max_length", m.max_decode_length},
          {"min_length", m.min_decode_length},
          {"force_end", m.force_end},
          {"repetition_penalty", m.sampling.repetition_penalty},
          {"no_repeat", m.sampling.no_repeat},
          {"suppress", m.suppressed},
          {"suppress_first", m.suppressed_first},
          {"more_ends", m.more_ends},
          {"temperature", m.sampling.temperature},
          {"top_k", m.sampling.top_k},
          {"top_p", m.sampling.top_p}};
}

Json rotary_json(const RotaryTable& r) {
  return {{"base", r.base},
          {"width", r.width},
          {"layout", rotary_layout_name(r.layout)},
          {"scaling", rotary_scaling_name(r.scaling)},
          {"factor", r.factor},
          {"low_frequency_factor", r.low_frequency_factor},
          {"high_frequency_factor", r.high_frequency_factor},
          {"original_length", r.original_length},
          {"attention_factor", r.attention_factor},
          {"slower", r.slower},
          {"slower_long", r.slower_long}};
}

}  // namespace

std::string describe_model(const Model& model, const std::vector<int64_t>& lengths) {
  for (int64_t length : lengths)
    if (length < 1 || length > (int64_t{1} << 31))
      fail(ATTN_INVALID, "length {}: possible are 1 to {}", length, int64_t{1} << 31);
  const CurrentDevice current(model.device());
  const Manifest& m = model.manifest();
  const uint32_t workers = model.runtime().threads.workers();
  Json j = {{"schema", "attnkit.model-description/1"},
            {"name", m.name},
            {"kind", kind_name(m.kind)},
            {"d_model", m.d_model},
            {"heads", m.heads},
            {"ffn", m.ffn},
            {"max_length", m.max_length},
            {"max_target", m.max_target()},
            {"norm", m.norm == Norm::pre ? "pre" : "post"},
            {"activation", activation_name(m.activation)},
            {"positions", positions_name(m.positions)},
            {"sinusoids", sinusoids_name(m.sinusoids)},
            {"kv_heads", m.kv_heads},
            {"head_width", m.head_width},
            {"norm_type", m.norm_type == NormType::rms ? "rms" : "layer"},
            {"norm_eps", m.norm_eps},
            {"qk_norm", m.qk_norm},
            {"attention_scale", m.attention_scale ? Json(*m.attention_scale) : Json()},
            {"bias", bias_name(m.bias).empty() ? Json(m.bias) : Json(bias_name(m.bias))},
            {"gated", m.gated},
            {"rotary", m.positions == Positions::rotary ? rotary_json(m.rotary) : Json()},
            {"position_offset", m.position_offset},
            {"token_types", m.token_types},
            {"embed_norm", m.embed_norm},
            {"vocab_size", std::max(m.encoder.vocab_size, m.decoder.vocab_size)},
            {"embed_scale", m.embed_scale},
            {"tie_embeddings", ties_json(m)},
            {"head_bias", m.head_bias},
            {"head_scale", m.head_scale},
            {"final_norm", m.final_norm},
            {"zero_begin", m.decoder.zero_begin},
            {"head_norm", m.head_norm},
            {"adapters", m.adapters},
            {"causal", m.encoder.causal},
            {"source_ends", m.encoder.ends},
            {"parameters", model.parameters()},
            {"weights_type", weight_type_name(m.weights_type)},
            {"device", device_name(m.device_type)},
            {"gpu", gpu_json(model.device())},
            {"encoder_layers", m.encoder.layers},
            {"decoder_layers", m.decoder.layers},
            {"source_vocabulary", text_or_null(m.encoder.vocab)},
            {"target_vocabulary", text_or_null(m.decoder.vocab)},
            {"head", head_json(m)},
            {"speech", model.frontend() ? speech_json(*model.frontend()) : Json()},
            {"length", length_json(model)},
            {"forced", m.forced},
            {"decode", m.decoder.layers > 0 ? decode_json(m) : Json()},
            {"stream", m.stream ? stream_json(*m.stream) : Json()},
            {"search", m.search ? *m.search : Json()},
            {"blocks", Json::array()}};
  for (const Block* block : model.blocks()) j["blocks"].push_back(block_json(m, *block, lengths, workers));
  j["costs"] = Json::array();
  for (size_t i = 0; i < lengths.size(); ++i) j["costs"].push_back(costs_of(model, j["blocks"], i, lengths[i]));
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);  // file names may be no UTF-8
}

std::string describe_session(const Session& session) {
  const Model& model = session.model();
  Json j = {{"schema", "attnkit.session/1"},
            {"rows", session.rows()},
            {"source_length", session.source_length()},
            {"position", session.position(0)},
            {"beyond_target_length", session.beyond_total()},
            {"blocks", Json::array()}};
  const Session::Source& source = session.source();
  if (model.frontend()) j["speech"] = speech_json(*model.frontend(), source);
  j["source_complete"] = source.complete;
  j["reads"] = source.reads;
  j["tokens_encoded_again"] = source.encoded_again;
  j["tokens_predicted_again"] = source.predicted_again;
  j["replays"] = source.replays;
  j["keys_replayed"] = source.keys_replayed;
  j["kept_bytes"] = source.kept_bytes();
  j["target_length"] = session.target_total() ? Json(*session.target_total()) : Json();
  uint64_t total = source.carried_bytes();
  j["carried_bytes"] = total;
  for (const Block* block : model.blocks()) {
    if (!block->streams()) continue;
    const bool target = block->choice().role == ATTN_DECODER_SELF;
    uint64_t bytes = 0;
    for (int r = 0; r < (target ? session.rows() : 1); ++r)
      bytes += block->state_bytes(target ? session.position(r) : session.source_length());
    total += bytes;
    j["blocks"].push_back({{"block", block->path()}, {"mechanism", block->choice().mechanism}, {"state_bytes", bytes}});
  }
  j["state_bytes"] = total;
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);  // file names may be no UTF-8
}

}  // namespace attnkit::core
