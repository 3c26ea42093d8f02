// Any bytes as a GGUF file: its tensors, and its vocabulary.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/error.hpp"
#include "core/tokenizer/gguf_vocabulary.hpp"
#include "core/weights/weights.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attnkit;
  const int fd = ::memfd_create("gguf", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  try {
    const Weights weights = Weights::open(path, "");
    for (const StoredTensor& t : weights.tensors()) weights.f32(t.name, t.shape);
  } catch (const Error&) {
  }
  try {
    TokenizerUse use;
    use.target = true;
    const auto tokenizer = open_gguf_vocabulary(path, use);
    const std::vector<int32_t> ids = tokenizer->tokenize("Some text, unaffable. 123 \u6771\u4eac");
    tokenizer->detokenize(ids.data(), ids.size());
  } catch (const Error&) {
  }
  ::close(fd);
  return 0;
}
