// State memory of many sessions: for each block rows of equal size, addressed by slot, so that one plugin call can
// serve any mix of sessions. Address space is reserved once and the system gives memory as it is touched: a slot costs
// what was written to it.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace attnkit::core {

class Arena {
 public:
  // row_bytes: one entry per block, multiples of ATTN_ALIGN.  Throws Error (ATTN_NO_MEMORY) if not even a few slots
  // fit.
  explicit Arena(const std::vector<uint64_t>& row_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A slot whose state is empty (all zero) in every block.  Any thread.  Throws Error when all are taken.
  int32_t acquire();
  // Makes states empty and gives the slot back.  Any thread.  used: by block, how far it may have been written.
  void release(int32_t slot, const std::vector<uint64_t>& used);
  void empty(int32_t slot, const std::vector<uint64_t>& used);
  void empty(size_t block, int32_t slot, uint64_t used_bytes);
  // Copies the first bytes of each block from one slot to another, in which `used` may have been written before.
  void copy(int32_t from, int32_t to, const std::vector<uint64_t>& bytes, const std::vector<uint64_t>& used);

  void* base(size_t block) const { return static_cast<char*>(memory_) + offsets_[block]; }
  uint64_t stride(size_t block) const { return row_bytes_[block]; }
  char* row(size_t block, int32_t slot) const {
    return static_cast<char*>(base(block)) + stride(block) * static_cast<uint64_t>(slot);
  }
  size_t blocks() const { return row_bytes_.size(); }
  int64_t slots() const { return slots_; }

 private:
  std::vector<uint64_t> row_bytes_, offsets_;
  void* memory_ = nullptr;
  uint64_t bytes_ = 0;
  int64_t slots_ = 0, next_ = 0;
  std::mutex mutex_;
  std::vector<int32_t> free_;
};

}  // namespace attnkit::core
