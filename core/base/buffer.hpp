// Scratch memory that grows and is then reused: running a model allocates only until it has seen its largest input.
#pragma once

#include <attnkit/plugin.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace attnkit::core {

class Buffer {
 public:
  // Returns at least n elements of T, aligned to ATTN_ALIGN, contents undefined.  Invalidates the last result.
  template <class T>
  T* get(int64_t n) {
    const size_t bytes = (static_cast<size_t>(n) * sizeof(T) + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
    if (bytes > bytes_) {
      data_.reset();
      bytes_ = 0;
      data_.reset(std::aligned_alloc(ATTN_ALIGN, bytes));
      if (!data_) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return static_cast<T*>(data_.get());
  }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace attnkit::core
