// Any bytes as a file of tensors; of a safetensors file these have no byte twice.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "core/base/error.hpp"
#include "core/base/formats/ctranslate2.hpp"
#include "core/base/formats/gguf.hpp"
#include "core/base/formats/npz.hpp"
#include "core/weights/weights.hpp"
#include "tests/fuzz/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attnkit::core;
  const MemoryFile file({reinterpret_cast<const char*>(data), size});
  try {
    const Weights weights = Weights::open(file.path(), "");
    size_t covered = 0;
    for (const StoredTensor& t : weights.tensors()) {
      covered += t.data.size();
      if (t.dtype == "F16" || t.dtype == "F32") weights.f32(t.name, t.shape);
    }
    const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
    if (covered > size && !is_gguf(bytes) && !is_ctranslate2(bytes) && !is_npz(bytes)) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
