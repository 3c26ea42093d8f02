// Any bytes as a model.bin of CTranslate2.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/error.hpp"
#include "core/weights/weights.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attnkit;
  const int fd = ::memfd_create("ctranslate2", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  try {
    const Weights weights = Weights::open(path, "");
    for (const StoredTensor& t : weights.tensors()) weights.f32(t.name, t.shape);
  } catch (const Error&) {
  }
  ::close(fd);
  return 0;
}
