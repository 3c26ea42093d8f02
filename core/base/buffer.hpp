// Scratch memory that grows and is then reused: running a model allocates only until it has seen its largest input.
#pragma once

#include <attnkit/plugin.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace attnkit::core {

// Memory that is not the host's, for buffers.
class BufferMemory {
 public:
  virtual ~BufferMemory() = default;
  // Multiples of ATTN_ALIGN.  Throws Error.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
};

class Buffer {
 public:
  Buffer() = default;
  // from: outlives the buffer; NULL: the host's memory.
  explicit Buffer(BufferMemory* from) : data_(nullptr, Free{from}) {}
  // Returns at least n elements of T, aligned to ATTN_ALIGN, contents undefined.  Invalidates the last result.
  template <class T>
  T* get(int64_t n) {
    const size_t bytes = (static_cast<size_t>(n) * sizeof(T) + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
    if (bytes > bytes_) {
      data_.reset();
      bytes_ = 0;
      BufferMemory* const from = data_.get_deleter().from;
      data_.reset(from ? from->allocate(bytes) : std::aligned_alloc(ATTN_ALIGN, bytes));
      if (!data_) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return static_cast<T*>(data_.get());
  }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    BufferMemory* from;
    void operator()(void* p) const { from ? from->release(p) : std::free(p); }
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace attnkit::core
