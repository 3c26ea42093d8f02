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

Arena::Arena(const std::vector<uint64_t>& row_bytes) : row_bytes_(row_bytes) {
  uint64_t per_slot = 0;
  for (uint64_t b : row_bytes_) per_slot += b;
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
  uint64_t offset = 0;
  for (uint64_t b : row_bytes_) {
    offsets_.push_back(offset);
    offset += b * static_cast<uint64_t>(slots_);
  }
}

Arena::~Arena() { munmap(memory_, bytes_); }

int32_t Arena::acquire() {
  std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    const int32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (next_ == slots_)
    fail(ATTN_NO_MEMORY, "all {} session rows of this model are in use: destroy sessions first", slots_);
  return static_cast<int32_t>(next_++);
}

void Arena::empty(size_t block, int32_t slot, uint64_t used_bytes) {
  clear(row(block, slot), std::min(used_bytes, row_bytes_[block]));
}

void Arena::empty(int32_t slot, const std::vector<uint64_t>& used) {
  for (size_t b = 0; b < used.size(); ++b) empty(b, slot, used[b]);
}

void Arena::release(int32_t slot, const std::vector<uint64_t>& used) {
  empty(slot, used);
  std::lock_guard lock(mutex_);
  free_.push_back(slot);
}

void Arena::copy(int32_t from, int32_t to, const std::vector<uint64_t>& bytes, const std::vector<uint64_t>& used) {
  for (size_t b = 0; b < bytes.size(); ++b) {
    std::memcpy(row(b, to), row(b, from), bytes[b]);
    // Bytes past the copy must be as in an empty state.
    if (used[b] > bytes[b]) std::memset(row(b, to) + bytes[b], 0, used[b] - bytes[b]);
  }
}

}  // namespace attnkit::core
