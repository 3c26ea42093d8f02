// Memory that ends at a page which nobody may touch, and what a plugin did to it.
#pragma once
#include <csetjmp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/conformance/loader.hpp"

namespace attnkit::core::conformance {

// The bytes lie as near to the forbidden page as their alignment lets them; what is left between, and before them,
// holds a canary, and before that there is another such page.
class Fence {
 public:
  Fence(std::string what, uint64_t bytes, uint64_t alignment);
  ~Fence();
  Fence(const Fence&) = delete;

  void* data() const { return data_; }
  bool intact() const;
  // From now on nobody may touch the bytes themselves.
  void forbid();
  const std::string& what() const { return what_; }
  bool forbids(const void* address) const;
  // "4 bytes past the end of port o", "at byte 0 of port o".
  std::string where(const void* address) const;

 private:
  std::string what_;
  uint64_t bytes_, mapped_ = 0;
  unsigned char *map_ = nullptr, *data_ = nullptr;
  bool forbidden_ = false;
};

using Fences = std::vector<std::unique_ptr<Fence>>;

// Calls act, on this thread alone.  Throws Violation when it touches a forbidden page or a canary; act is left where it
// was then, so this is for the last moments of a check.
void within(const Fences& fences, const char* function, const std::function<void()>& act);

}  // namespace attnkit::core::conformance
