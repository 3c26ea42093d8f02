// Any bytes as SentencePiece's file, and its pieces on two texts.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/error.hpp"
#include "core/tokenizer/sentencepiece.hpp"
#include "tests/fuzz/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attnkit::core;
  const MemoryFile file({reinterpret_cast<const char*>(data), size});
  try {
    const auto tokenizer = open_sentencepiece(file.path(), {.max_ids = 1000});
    for (const char* text : {"Some text, unaffable. 123 \u6771\u4eac", " \uff21 \ufb01 <s> "}) {
      const std::vector<int32_t> ids = tokenizer->tokenize(text);
      tokenizer->detokenize(ids.data(), ids.size());
    }
  } catch (const Error&) {
  }
  return 0;
}
