// features and frontend in [model.encoder]: a source that is speech.
#include "core/base/error.hpp"
#include "core/manifest/codes.hpp"
#include "core/manifest/parts.hpp"
#include "core/manifest/reader.hpp"

namespace attnkit {
namespace {

// Whether all of it is sound.
bool read_features(const Entry& entry, ManifestCheck& check, FbankSpec& to) {
  const TableReader reader(entry.value, "model.encoder.features", check.diagnostics);
  const auto type = reader.choice("type");
  const auto rate = reader.integer("sample_rate"), bins = reader.integer("bins");
  const auto window = reader.number("window_ms"), shift = reader.number("shift_ms");
  if (!type || !rate || !bins || !window || !shift) return false;
  to = {static_cast<int>(*rate), static_cast<int>(*bins), *window, *shift};
  if (*shift > *window) {
    check.diagnostics.error(ak::wrong_value, reader.place("shift_ms"),
                            fmt::format("\"shift_ms\" is {}, more than window_ms, {}", *shift, *window),
                            "samples between two frames would be seen by none");
    return false;
  }
  try {
    const Fbank made(to);
    return true;
  } catch (const Error& e) {
    check.diagnostics.error(ak::wrong_value, entry.value.place, e.what());
    return false;
  }
}

bool read_frontend(const Entry& entry, ManifestCheck& check, SpeechTable& to) {
  const TableReader reader(entry.value, "model.encoder.frontend", check.diagnostics);
  const auto type = reader.choice("type");
  const auto layers = reader.integer("layers"), kernel = reader.integer("kernel"), stride = reader.integer("stride");
  if (reader.mentioned("channels") && !reader.given("channels")) return false;
  if (!type || !layers || !kernel || !stride) return false;
  to.layers = static_cast<int>(*layers);
  to.kernel = static_cast<int>(*kernel);
  to.stride = static_cast<int>(*stride);
  to.channels = static_cast<int>(reader.integer("channels").value_or(check.manifest.d_model));
  if (*kernel >= *stride) return true;
  check.diagnostics.error(ak::wrong_value, reader.place("kernel"),
                          fmt::format("\"kernel\" is {}, less than stride, {}", *kernel, *stride),
                          "rows between two outputs would be seen by none");
  return false;
}

}  // namespace

void check_speech(const Node& encoder, ManifestCheck& check) {
  Manifest& m = check.manifest;
  for (const char* key : {"vocab", "lowercase"})
    if (const Entry* entry = encoder.find(key))
      check.diagnostics.error(ak::not_applicable, entry->place,
                              fmt::format("\"{}\" is for text, and this encoder has features of speech", key),
                              "remove it, or \"features\" and \"frontend\"");
  const Entry *features = encoder.find("features"), *frontend = encoder.find("frontend");
  const auto need = [&](const Entry* entry, const char* key, const char* help) {
    if (!entry)
      check.diagnostics.error(ak::missing_key, encoder.place,
                              fmt::format("an encoder that takes speech needs \"{}\"", key), help);
  };
  need(features, "features", "features = { type = \"fbank\" }");
  need(frontend, "frontend", "frontend = { type = \"conv\" }");
  if (!features || !frontend || features->value.kind != Node::Kind::table || frontend->value.kind != Node::Kind::table)
    return;
  SpeechTable table;
  const bool sound = read_features(*features, check, table.features);
  if (read_frontend(*frontend, check, table) && sound) m.speech = table;
}

}  // namespace attnkit
