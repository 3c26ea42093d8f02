#include "core/manifest/manifest.hpp"

#include "core/base/error.hpp"
#include "core/manifest/codes.hpp"
#include "core/manifest/parts.hpp"
#include "core/manifest/reader.hpp"
#include "core/base/text.hpp"

namespace attnkit {
namespace {

constexpr std::string_view schema = "attnkit.model/1";
constexpr std::string_view family = "attnkit.model/";

// False: another version of the format, whose other keys mean who knows what.
bool check_schema(const Node& tree, Diagnostics& diagnostics) {
  const Entry* given = tree.find("schema");
  if (!given || given->value.kind != Node::Kind::text || given->value.text == schema) return true;
  const bool other_version = given->value.text.starts_with(family);
  diagnostics.error(
      ak::wrong_schema, given->value.place, fmt::format("schema {} is not {}", quote(given->value.text), quote(schema)),
      other_version ? "this version of attnkit reads no other: update attnkit, or convert the manifest" : "");
  return !other_version;
}

}  // namespace

Manifest read_manifest(const std::string& toml, const std::string& dir, const Registry& registry, int32_t device_type,
                       Diagnostics& diagnostics) {
  Manifest manifest;
  Diagnostics syntax;
  const Node tree = parse_toml(toml, syntax);
  for (const Diagnostic& d : syntax.sorted()) diagnostics.error(d.code, d.place, d.message, d.help, d.area);
  if (syntax.failed() || !check_schema(tree, diagnostics)) return manifest;
  const TableReader root(tree, "", diagnostics);
  ManifestCheck check{dir, registry, device_type, diagnostics, manifest};
  check.length_meant = root.meant("length");
  using Part = void (*)(const Node&, ManifestCheck&);
  const std::pair<const char*, Part> parts[] = {
      {"model", check_model},   {"weights", check_weights},     {"length", check_length}, {"decode", check_decode},
      {"stream", check_stream}, {"attention", check_attention}, {"search", check_search}};
  for (const auto& [key, part] : parts)
    if (const Entry* entry = root.given(key)) part(entry->value, check);
  return manifest;
}

bool has_role(ModelKind kind, uint32_t role) {
  if (role == ATTN_ENCODER_SELF) return kind != ModelKind::decoder;
  if (role == ATTN_DECODER_SELF) return kind != ModelKind::encoder;
  return kind == ModelKind::encoder_decoder;
}

int layers_of(const Manifest& manifest, uint32_t role) {
  return role == ATTN_ENCODER_SELF ? manifest.encoder.layers : manifest.decoder.layers;
}

const char* role_name(uint32_t role) {
  switch (role) {
    case ATTN_ENCODER_SELF:
      return "encoder.self";
    case ATTN_DECODER_SELF:
      return "decoder.self";
    case ATTN_DECODER_CROSS:
      return "decoder.cross";
    default:
      return "unknown role";
  }
}

std::string block_path(uint32_t role, int layer) { return fmt::format("{}.{}", role_name(role), layer); }

attn_block block_of(const Manifest& manifest, const BlockChoice& choice) {
  attn_block block{};
  block.struct_size = sizeof block;
  block.role = choice.role;
  block.causal = choice.role == ATTN_DECODER_SELF || (choice.role == ATTN_ENCODER_SELF && manifest.encoder.causal);
  block.heads = static_cast<uint32_t>(manifest.heads);
  block.d_model = manifest.d_model;
  block.head_width = manifest.d_model / manifest.heads;
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

}  // namespace attnkit
