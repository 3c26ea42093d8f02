#include "core/model/encoded.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "core/base/error.hpp"
#include "core/manifest/manifest.hpp"

namespace attnkit {
namespace {

std::string file_text(const Manifest& manifest) {
  if (!manifest.weights_sha256.empty()) return manifest.weights_sha256;
  const std::string path = std::filesystem::absolute(manifest.weights_file).lexically_normal().string();
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail(ATTN_INVALID, "{}: does not exist any more", path);
  return fmt::format("{} ({} bytes, changed at {}.{:09})", path, status.st_size, status.st_mtim.tv_sec,
                     status.st_mtim.tv_nsec);
}

std::string weights_text(const Manifest& manifest) {
  const std::string seed = manifest.weights_seed ? fmt::format("seed {}", *manifest.weights_seed) : "";
  if (manifest.weights_file.empty()) return seed;
  return seed.empty() ? file_text(manifest) : fmt::format("{} and {}", file_text(manifest), seed);
}

}  // namespace

EncoderIdentity model_traits(const Manifest& m) {
  EncoderIdentity traits;
  const auto add = [&](const std::string& name, const auto& value) {
    traits.push_back({name, fmt::format("{}", value)});
  };
  add("d_model", m.d_model);
  add("heads", m.heads);
  add("ffn", m.ffn);
  add("max_length", m.max_length);
  add("norm", m.norm == Norm::pre ? "pre" : "post");
  add("activation", m.activation == Activation::relu ? "relu" : "gelu");
  add("positions", m.positions == Positions::sinusoidal ? "sinusoidal"
                   : m.positions == Positions::learned  ? "learned"
                                                        : "none");
  add("embed_scale", m.embed_scale);
  add("head_norm", m.head_norm);
  add("adapters", m.adapters);
  add("encoder.layers", m.encoder.layers);
  add("encoder.causal", m.encoder.causal);
  if (m.speech) {
    const SpeechTable& s = *m.speech;
    add("features", fmt::format("fbank of {} Hz, {} bins, {} ms every {} ms", s.features.sample_rate, s.features.bins,
                                s.features.window_ms, s.features.shift_ms));
    add("frontend",
        fmt::format("conv of {} layers, kernel {}, stride {}, {} channels", s.layers, s.kernel, s.stride, s.channels));
  }
  return traits;
}

EncoderIdentity encoder_identity(const Manifest& m, const Registry& registry, int32_t device_type) {
  EncoderIdentity traits = model_traits(m);
  const auto add = [&](const std::string& name, const auto& value) {
    traits.push_back({name, fmt::format("{}", value)});
  };
  add("weights", weights_text(m));
  for (const BlockChoice& block : m.blocks) {
    if (block.role != ATTN_ENCODER_SELF) continue;
    const Plugin& plugin = *registry.find(block.mechanism, device_type);
    add(block_path(block.role, block.layer), use_text(plugin, block.options));
    add("the plugin of " + block_path(block.role, block.layer), plugin.path);
  }
  return traits;
}

void require_same_encoder(const EncoderIdentity& theirs, const EncoderIdentity& ours) {
  for (size_t i = 0; i < std::min(theirs.size(), ours.size()); ++i) {
    if (theirs[i].name != ours[i].name)
      fail(ATTN_INVALID, "the sources were encoded by another encoder: {} there, {} in this model", theirs[i].name,
           ours[i].name);
    if (theirs[i].value != ours[i].value)
      fail(ATTN_INVALID, "the sources were encoded by another encoder: {} is {} there, but {} in this model",
           ours[i].name, theirs[i].value, ours[i].value);
  }
}

}  // namespace attnkit
