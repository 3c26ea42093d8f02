// Any bytes as a model.bin of CTranslate2.
#include <cstddef>
#include <cstdint>

#include "core/base/error.hpp"
#include "core/weights/weights.hpp"
#include "tests/fuzz/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attnkit::core;
  const MemoryFile file({reinterpret_cast<const char*>(data), size});
  try {
    const Weights weights = Weights::open(file.path(), "");
    for (const StoredTensor& t : weights.tensors()) weights.f32(t.name, t.shape);
  } catch (const Error&) {
  }
  return 0;
}
