// Any bytes as a safetensors file.
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
  const int fd = ::memfd_create("weights", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    const Weights weights = Weights::open("/proc/self/fd/" + std::to_string(fd), "");
    size_t covered = 0;
    for (const StoredTensor& t : weights.tensors()) {
      covered += t.data.size();
      if (t.dtype == "F16" || t.dtype == "F32") weights.f32(t.name, t.shape);
    }
    if (covered > size) std::abort();
  } catch (const Error&) {
  }
  ::close(fd);
  return 0;
}
