#include "core/manifest/manifest.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace attnkit::core {

void to_json(nlohmann::ordered_json& json, const SearchChoice& choice) {
  json = {{"label", choice.label}, {"toml", choice.toml}, {"mechanism", choice.mechanism}};
}

const char* kind_name(ModelKind kind) {
  return kind == ModelKind::encoder ? "encoder" : kind == ModelKind::decoder ? "decoder" : "encoder-decoder";
}

const char* weight_type_name(WeightType type) {
  constexpr const char* names[] = {"f32", "bf16", "f16", "int8", "int4", "stored"};
  return names[static_cast<size_t>(type)];
}

const char* positions_name(Positions positions) {
  constexpr const char* names[] = {"sinusoidal", "learned", "rotary", "none"};
  return names[static_cast<size_t>(positions)];
}

const char* sinusoids_name(Sinusoids sinusoids) {
  constexpr const char* names[] = {"interleaved", "halves", "tensor2tensor"};
  return names[static_cast<size_t>(sinusoids)];
}

const char* early_stop_name(EarlyStop stop) {
  constexpr const char* names[] = {"never", "guess", "full", "shrink"};
  return names[static_cast<size_t>(stop)];
}

std::string bias_name(const std::set<std::string>& bias) {
  for (const char* word : {"all", "all_but_k", "qkv", "none"})
    if (bias_of(word) == bias) return word;
  return "";
}

std::set<std::string> bias_of(const std::string& word) {
  if (word == "none") return {};
  if (word == "qkv") return {"q", "k", "v"};
  std::set<std::string> all = {"q", "k", "v", "o", "in", "gate", "out"};
  if (word == "all_but_k") all.erase("k");
  return all;
}

const char* rotary_layout_name(RotaryLayout layout) {
  return layout == RotaryLayout::halves ? "halves" : "interleaved";
}

const char* rotary_scaling_name(RotaryScaling scaling) {
  constexpr const char* names[] = {"none", "linear", "llama3", "longrope"};
  return names[static_cast<size_t>(scaling)];
}

const char* activation_name(Activation activation) {
  constexpr const char* names[] = {"relu", "gelu", "gelu_tanh", "quick_gelu", "silu"};
  return names[static_cast<size_t>(activation)];
}

bool are_tied(const Manifest& manifest, const char* one, const char* other) {
  return manifest.tied.contains(one) && manifest.tied.contains(other);
}

bool has_role(ModelKind kind, uint32_t role) {
  if (role == ATTN_ENCODER_SELF) return kind != ModelKind::decoder;
  if (role == ATTN_DECODER_SELF) return kind != ModelKind::encoder;
  return kind == ModelKind::encoder_decoder;
}

int layers_of(const Manifest& manifest, uint32_t role) {
  return role == ATTN_ENCODER_SELF ? manifest.encoder.layers : manifest.decoder.layers;
}

std::string block_path(uint32_t role, int layer) { return fmt::format("{}.{}", role_name(role), layer); }

attn_block block_of(const Manifest& manifest, const BlockChoice& choice) {
  attn_block block{};
  block.struct_size = sizeof block;
  block.role = choice.role;
  block.causal = choice.role == ATTN_DECODER_SELF || (choice.role == ATTN_ENCODER_SELF && manifest.encoder.causal);
  block.heads = static_cast<uint32_t>(manifest.heads);
  block.d_model = manifest.d_model;
  block.head_width = block.key_width = manifest.head_width;
  block.kv_heads = static_cast<uint32_t>(manifest.kv_heads);
  return block;
}

bool predicts_from_source(Predict predict) {
  return predict == Predict::ratio || predict == Predict::lut || predict == Predict::network;
}

uint32_t total_flags(const Manifest& manifest, const BlockChoice& choice) {
  const uint32_t both = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  const bool source_known = !manifest.stream || choice.replays;
  const bool target_known =
      manifest.predict != Predict::none && (source_known || !predicts_from_source(manifest.predict));
  // A bidirectional encoder runs over all of the source that is there.
  if (choice.role == ATTN_ENCODER_SELF) return manifest.stream && manifest.encoder.causal ? 0 : both;
  if (choice.role == ATTN_DECODER_SELF) return target_known ? both : 0;
  return (source_known ? ATTN_KNOWS_K_TOTAL : 0) | (target_known ? ATTN_KNOWS_Q_TOTAL : 0);
}

}  // namespace attnkit::core
