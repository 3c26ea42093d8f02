// Any text as a manifest, and as options of a mechanism.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "core/manifest/manifest.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attnkit::core;
  static const Registry registry({ATTNKIT_FAKE_PLUGINS});
  const std::string text(reinterpret_cast<const char*>(data), size);
  Diagnostics diagnostics;
  read_manifest(text, ATTNKIT_SOURCE_DIR "/tests/core/manifest/data", registry, 1, diagnostics);
  for (const Diagnostic& d : diagnostics.sorted())
    if (d.place.line < 1 || d.place.column < 1 || d.message.empty() || d.message.find('\n') != std::string::npos)
      std::abort();
  try {
    read_options(*registry.find("fake_picky", 1), text.c_str());
  } catch (const Error&) {
  }
  return 0;
}
