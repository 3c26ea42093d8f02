// Manifests made from tests/core/manifest/data/model.toml, read with the fake mechanisms.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/manifest/manifest.hpp"

namespace attnkit::core {

inline const std::string data_folder = ATTNKIT_SOURCE_DIR "/tests/core/manifest/data";

inline const Registry& fake_registry() {
  static const Registry r({ATTNKIT_FAKE_PLUGINS});
  return r;
}

inline std::string read_text(const std::string& name) {
  std::ifstream in(data_folder + "/" + name, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

struct Read {
  Manifest manifest;
  std::vector<Diagnostic> diagnostics;
};

inline Read read(const std::string& toml) {
  Diagnostics d;
  Manifest m = read_manifest(toml, data_folder, fake_registry(), 1, d);
  return {std::move(m), d.sorted()};
}

// "12:3 AK101 message", one line each.
inline std::string report(const std::vector<Diagnostic>& all, bool help = false) {
  std::string out;
  for (const Diagnostic& d : all) {
    out += fmt::format("{}:{} {} AK{} {}\n", d.place.line, d.place.column,
                       d.severity == ATTNKIT_ERROR ? "error" : "warning", d.code, d.message);
    if (help && !d.help.empty()) out += "  help: " + d.help + "\n";
  }
  return out;
}

// model.toml with one line (from 1) replaced; further lines go to the end.
inline std::string edited(int line, const std::string& text, const std::string& appended = "") {
  std::istringstream in(read_text("model.toml"));
  std::string out, row;
  for (int i = 1; std::getline(in, row); ++i) out += (i == line ? text : row) + "\n";
  return out + appended;
}

}  // namespace attnkit::core
