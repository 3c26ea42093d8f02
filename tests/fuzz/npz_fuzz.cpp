// Any bytes as an npz file: its tensors, and the settings that Marian keeps in one.
#include <cstddef>
#include <cstdint>

#include "core/base/error.hpp"
#include "core/base/formats/npz.hpp"
#include "core/base/formats/yaml.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attnkit::core;
  try {
    for (const NpzTensor& t : read_npz({reinterpret_cast<const std::byte*>(data), size}, "x.npz"))
      if (t.type == "I8") parse_yaml({reinterpret_cast<const char*>(t.data.data()), t.data.size()}, t.name);
  } catch (const Error&) {
  }
  try {
    parse_yaml({reinterpret_cast<const char*>(data), size}, "x.yml");
  } catch (const Error&) {
  }
  return 0;
}
