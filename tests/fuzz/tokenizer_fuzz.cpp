// Any bytes as a tokenizer.json followed, after a NUL, by a text to split.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "core/tokenizer/huggingface.hpp"
#include "tests/fuzz/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attnkit::core;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(all.find('\0'), size);
  const MemoryFile file(all.substr(0, end));
  try {
    const auto tokenizer = open_tokenizer_json(file.path(), {.max_ids = 1000});
    const std::vector<int32_t> ids = tokenizer->tokenize(all.substr(std::min(end + 1, size)));
    tokenizer->detokenize(ids.data(), ids.size());
  } catch (const Error&) {
  }
  return 0;
}
