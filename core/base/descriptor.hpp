// File descriptors that are closed with their owner, and what is written to them whole.
#pragma once

#include <string_view>
#include <utility>

namespace attnkit::core {

// -1 is none.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }
  int get() const { return number_; }
  // Returns 0, or the system's error.
  int close();

 private:
  int number_;
};

// Returns 0, or the system's error; less than the whole may have been written then.
int write_all(int file, std::string_view bytes);

}  // namespace attnkit::core
