// Any bytes as a tokenizer.json followed, after a NUL, by a text to split.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/error.hpp"
#include "core/tokenizer/huggingface.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attnkit;
  const std::string all(reinterpret_cast<const char*>(data), size);
  const std::string file = all.substr(0, all.find('\0'));
  const int fd = ::memfd_create("tokenizer", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, file.data(), file.size()) != static_cast<ssize_t>(file.size())) std::abort();
  try {
    const auto tokenizer = open_tokenizer_json("/proc/self/fd/" + std::to_string(fd), {.most = 1000});
    const std::vector<int32_t> ids =
        tokenizer->tokenize(std::string_view(all).substr(std::min(file.size() + 1, all.size())));
    tokenizer->detokenize(ids.data(), ids.size());
  } catch (const Error&) {
  }
  ::close(fd);
  return 0;
}
