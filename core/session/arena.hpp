// State memory of many sessions: for each block rows of equal size, addressed by slot, so that one plugin call can
// serve any mix of sessions. Address space is reserved once and the system gives memory as it is touched: a slot costs
// what was written to it.  A device gives memory whole, so there the slots double when they are all taken, and move.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "core/device/device.hpp"

namespace attnkit::core {

class Arena {
 public:
  // row_bytes: one entry per block, multiples of ATTN_ALIGN.  Throws Error (ATTN_NO_MEMORY) if not even a few slots
  // fit.
  // device: where it is; NULL: on the CPU.
  explicit Arena(const std::vector<uint64_t>& row_bytes, std::shared_ptr<const Device> device = nullptr);
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
  // The first bytes of a state, from and to memory of the host.
  void save(size_t block, int32_t slot, void* to, uint64_t bytes) const;
  void load(size_t block, int32_t slot, const void* from, uint64_t bytes);

  // While one is held on a device, addresses stay as they are.  Not for the functions above.
  using Pins = std::vector<std::shared_lock<std::shared_mutex>>;
  std::shared_lock<std::shared_mutex> pin() const { return std::shared_lock(moving_); }
  uint64_t moves() const { return moves_; }  // how often they changed

  void* base(size_t block) const { return bases_[block]; }
  uint64_t stride(size_t block) const { return row_bytes_[block]; }
  char* row(size_t block, int32_t slot) const {
    return static_cast<char*>(base(block)) + stride(block) * static_cast<uint64_t>(slot);
  }
  size_t blocks() const { return row_bytes_.size(); }
  int64_t slots() const { return slots_; }

 private:
  void map(uint64_t per_slot);
  void grow();
  template <class F>
  void on_device(F&& enqueue) const;

  std::vector<uint64_t> row_bytes_;
  std::vector<char*> bases_;
  void* memory_ = nullptr;
  uint64_t bytes_ = 0;
  int64_t slots_ = 0, next_ = 0;
  std::mutex mutex_;
  std::vector<int32_t> free_;

  std::shared_ptr<const Device> device_;
  std::vector<DeviceMemory> blocks_;
  std::unique_ptr<Stream> stream_;
  mutable std::mutex stream_mutex_;
  mutable std::shared_mutex moving_;
  std::atomic<uint64_t> moves_{0};
};

}  // namespace attnkit::core
