#include "core/model/encoded.hpp"

#include <algorithm>
#include <filesystem>

#include "core/base/error.hpp"
#include "core/base/sha256.hpp"
#include "core/manifest/manifest.hpp"

namespace attnkit::core {
namespace {

std::string weights_text(const Manifest& m, const std::string& identity) {
  const std::string seed = m.weights_seed ? fmt::format("seed {}", *m.weights_seed) : "";
  if (m.weights_file.empty()) return seed;
  std::string file = m.weights_sha256;
  if (file.empty()) {
    const std::string path = std::filesystem::absolute(m.weights_file).lexically_normal().string();
    file = fmt::format("{} as of {:.12}", path, sha256_hex(std::as_bytes(std::span(identity))));
  }
  return seed.empty() ? file : fmt::format("{} and {}", file, seed);
}

std::string rotary_text(const RotaryTable& r) {
  return fmt::format("base {}, width {}, {}, scaling {} by {}, {} to {} of {}{}", r.base, r.width,
                     rotary_layout_name(r.layout), rotary_scaling_name(r.scaling), r.factor, r.low_frequency_factor,
                     r.high_frequency_factor, r.original_length,
                     r.slower.empty() ? std::string()
                                      : fmt::format(", times {}, slower by {} and {}", r.attention_factor,
                                                    fmt::join(r.slower, " "), fmt::join(r.slower_long, " ")));
}

}  // namespace

EncoderIdentity model_traits(const Manifest& m) {
  EncoderIdentity traits;
  traits.add("d_model", m.d_model);
  traits.add("heads", m.heads);
  traits.add("ffn", m.ffn);
  traits.add("max_length", m.max_length);
  traits.add("norm", m.norm == Norm::pre ? "pre" : "post");
  traits.add("activation", activation_name(m.activation));
  traits.add("positions", positions_name(m.positions));
  traits.add("embed_scale", m.embed_scale);
  traits.add("head_norm", m.head_norm);
  traits.add("adapters", m.adapters);
  traits.add("encoder.layers", m.encoder.layers);
  traits.add("encoder.causal", m.encoder.causal);
  // Sessions that were saved before these keys came have no word of them.
  if (!m.encoder.ends) traits.add("encoder.end", false);
  if (m.norm_eps != 1e-5) traits.add("norm_eps", m.norm_eps);
  if (m.embed_norm) traits.add("embed_norm", m.embed_norm);
  if (m.token_types > 0) traits.add("token_types", m.token_types);
  if (m.position_offset > 0) traits.add("position_offset", m.position_offset);
  if (m.sinusoids != Sinusoids::interleaved) traits.add("sinusoids", sinusoids_name(m.sinusoids));
  if (m.attention_scale) traits.add("attention_scale", *m.attention_scale);
  if (m.kv_heads != m.heads) traits.add("kv_heads", m.kv_heads);
  if (m.head_width * m.heads != m.d_model) traits.add("head_width", m.head_width);
  if (m.norm_type == NormType::rms) traits.add("norm_type", "rms");
  if (const std::string word = bias_name(m.bias); word != "all")
    traits.add("bias", word.empty() ? fmt::format("{}", fmt::join(m.bias, " ")) : word);
  if (m.final_norm != (m.norm == Norm::pre)) traits.add("final_norm", m.final_norm);
  if (m.tied.contains("source")) traits.add("tie_embeddings", fmt::format("{}", fmt::join(m.tied, " ")));
  if (m.gated) traits.add("gated", true);
  if (m.qk_norm) traits.add("qk_norm", true);
  if (m.positions == Positions::rotary) traits.add("rotary", rotary_text(m.rotary));
  if (m.speech) {
    const SpeechTable& s = *m.speech;
    const std::string type = s.type == Features::fbank ? "fbank" : fmt::format("log_mel of {} frames", s.frames);
    traits.add("features", fmt::format("{} of {} Hz, {} bins, {} ms every {} ms", type, s.features.sample_rate,
                                       s.features.bins, s.features.window_ms, s.features.shift_ms));
    traits.add("frontend", fmt::format("{} of {} layers, kernel {}, stride {}, {} channels",
                                       s.frontend == Frontends::conv ? "conv" : "centred", s.layers, s.kernel, s.stride,
                                       s.channels));
  }
  return traits;
}

EncoderIdentity encoder_identity(const Manifest& m, const Registry& registry, const std::string& weights) {
  EncoderIdentity traits = model_traits(m);
  traits.add("weights", weights_text(m, weights));
  traits.add("weights.type", weight_type_name(m.weights_type));
  for (const BlockChoice& block : m.blocks) {
    if (block.role != ATTN_ENCODER_SELF) continue;
    const Plugin& plugin = *registry.find(block.mechanism, m.device_type);
    traits.add(block_path(block.role, block.layer), use_text(plugin, block.options));
    traits.add("the plugin of " + block_path(block.role, block.layer), plugin.path);
  }
  return traits;
}

void require_same(const EncoderIdentity& theirs, const EncoderIdentity& ours, const char* opening, const char* here) {
  for (size_t i = 0; i < std::min(theirs.size(), ours.size()); ++i) {
    if (theirs[i].name != ours[i].name)
      fail(ATTN_INVALID, "{}: {} there, {} {}", opening, theirs[i].name, ours[i].name, here);
    if (theirs[i].value != ours[i].value)
      fail(ATTN_INVALID, "{}: {} is {} there, but {} {}", opening, ours[i].name, theirs[i].value, ours[i].value, here);
  }
}

}  // namespace attnkit::core
