#include "core/base/descriptor.hpp"

#include <unistd.h>

#include <cerrno>

namespace attnkit::core {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) close();
  number_ = std::exchange(other.number_, number_);
  return *this;
}

int Descriptor::close() {
  const int number = std::exchange(number_, -1);
  return number < 0 || ::close(number) == 0 ? 0 : errno;
}

int write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

}  // namespace attnkit::core
