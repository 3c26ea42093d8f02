#include "core/session/arena.hpp"

#include <attnkit/plugin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

constexpr uint64_t reserve = uint64_t{1} << 38;  // 256 GiB of address space, not of memory
constexpr int64_t max_slots = 65536, min_slots = 16;

// Zeroes without touching pages that were never written: whole pages go back to the system, which gives zero pages
// later.
void clear(char* begin, uint64_t bytes) {
  static const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  char* const end = begin + bytes;
  char* const first = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page);
  char* const last = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(end) / page * page);
  if (bytes < 16 * page || first >= last || madvise(first, static_cast<size_t>(last - first), MADV_DONTNEED) != 0) {
    std::memset(begin, 0, bytes);
    return;
  }
  std::memset(begin, 0, static_cast<size_t>(first - begin));
  std::memset(last, 0, static_cast<size_t>(end - last));
}

}  // namespace

Arena::Arena(const std::vector<uint64_t>& row_bytes, std::shared_ptr<const Device> device)
    : row_bytes_(row_bytes), device_(std::move(device)) {
  if (device_) {
    bases_.resize(row_bytes_.size());
    blocks_.resize(row_bytes_.size());
    stream_ = std::make_unique<Stream>(*device_);
    return;
  }
  uint64_t per_slot = 0;
  for (uint64_t b : row_bytes_) per_slot += b;
  map(per_slot);
}

void Arena::map(uint64_t per_slot) {
  if (per_slot > reserve)
    fail(ATTN_NO_MEMORY, "one session needs {} bytes of state; {} are possible: lower max_length", per_slot, reserve);
  slots_ = std::clamp<int64_t>(static_cast<int64_t>(reserve / std::max<uint64_t>(1, per_slot)), 1, max_slots);
  for (;; slots_ /= 2) {
    bytes_ = std::max<uint64_t>(1, per_slot) * static_cast<uint64_t>(slots_);
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ != MAP_FAILED) break;
    if (slots_ <= min_slots)
      fail(ATTN_NO_MEMORY,
           "cannot reserve {} bytes for the states of {} session rows: lower max_length or raise the address space "
           "limit",
           bytes_, slots_);
  }
  // A huge page for the first bytes of a state that has room to grow would cost far more than was written.
  madvise(memory_, bytes_, MADV_NOHUGEPAGE);
  char* base = static_cast<char*>(memory_);
  for (uint64_t b : row_bytes_) {
    bases_.push_back(base);
    base += b * static_cast<uint64_t>(slots_);
  }
}

Arena::~Arena() {
  if (memory_) munmap(memory_, bytes_);
}

// All memory is there before anything changes.
void Arena::grow() {
  const int64_t slots = std::max(min_slots, 2 * slots_);
  std::vector<DeviceMemory> blocks;
  for (const uint64_t b : row_bytes_) blocks.emplace_back(*device_, b * static_cast<uint64_t>(slots));
  const std::unique_lock lock(moving_);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const uint64_t held = row_bytes_[b] * static_cast<uint64_t>(slots_);
    stream_->copy(blocks[b].data(), bases_[b], held);
    stream_->zero(blocks[b].data() + held, blocks[b].bytes() - held);
  }
  stream_->wait();
  blocks_ = std::move(blocks);
  for (size_t b = 0; b < blocks_.size(); ++b) bases_[b] = blocks_[b].data();
  slots_ = slots;
  ++moves_;
}

// Calls of several threads share one stream; what a call did is done when it returns.
template <class F>
void Arena::on_device(F&& enqueue) const {
  const std::shared_lock pinned = pin();
  const std::lock_guard lock(stream_mutex_);
  enqueue();
  stream_->wait();
}

int32_t Arena::acquire() {
  std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    const int32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (device_ && next_ == slots_ && slots_ < max_slots) grow();
  if (next_ == slots_)
    fail(ATTN_NO_MEMORY, "all {} session rows of this model are in use: destroy sessions first", slots_);
  return static_cast<int32_t>(next_++);
}

void Arena::empty(size_t block, int32_t slot, uint64_t used_bytes) {
  const uint64_t bytes = std::min(used_bytes, row_bytes_[block]);
  if (!device_) return clear(row(block, slot), bytes);
  on_device([&] { stream_->zero(row(block, slot), bytes); });
}

void Arena::empty(int32_t slot, const std::vector<uint64_t>& used) {
  if (!device_) {
    for (size_t b = 0; b < used.size(); ++b) empty(b, slot, used[b]);
    return;
  }
  on_device([&] {
    for (size_t b = 0; b < used.size(); ++b) stream_->zero(row(b, slot), std::min(used[b], row_bytes_[b]));
  });
}

void Arena::release(int32_t slot, const std::vector<uint64_t>& used) {
  empty(slot, used);
  std::lock_guard lock(mutex_);
  free_.push_back(slot);
}

void Arena::copy(int32_t from, int32_t to, const std::vector<uint64_t>& bytes, const std::vector<uint64_t>& used) {
  // Bytes past the copy must be as in an empty state.
  if (device_)
    return on_device([&] {
      for (size_t b = 0; b < bytes.size(); ++b) {
        stream_->copy(row(b, to), row(b, from), bytes[b]);
        if (used[b] > bytes[b]) stream_->zero(row(b, to) + bytes[b], used[b] - bytes[b]);
      }
    });
  for (size_t b = 0; b < bytes.size(); ++b) {
    std::memcpy(row(b, to), row(b, from), bytes[b]);
    if (used[b] > bytes[b]) std::memset(row(b, to) + bytes[b], 0, used[b] - bytes[b]);
  }
}

void Arena::save(size_t block, int32_t slot, void* to, uint64_t bytes) const {
  if (bytes == 0) return;
  if (!device_)
    std::memcpy(to, row(block, slot), bytes);
  else
    on_device([&] { stream_->to_host(to, row(block, slot), bytes); });
}

void Arena::load(size_t block, int32_t slot, const void* from, uint64_t bytes) {
  if (bytes == 0) return;
  if (!device_)
    std::memcpy(row(block, slot), from, bytes);
  else
    on_device([&] { stream_->from_host(row(block, slot), from, bytes); });
}

}  // namespace attnkit::core
