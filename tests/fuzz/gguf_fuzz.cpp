// Any bytes as a GGUF file: its tensors, and its vocabulary.
#include <cstddef>
#include <cstdint>

#include "core/base/error.hpp"
#include "core/tokenizer/gguf_vocabulary.hpp"
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
  try {
    TokenizerUse use;
    use.target = true;
    const auto tokenizer = open_gguf_vocabulary(file.path(), use);
    const std::vector<int32_t> ids = tokenizer->tokenize("Some text, unaffable. 123 \u6771\u4eac");
    tokenizer->detokenize(ids.data(), ids.size());
  } catch (const Error&) {
  }
  return 0;
}
