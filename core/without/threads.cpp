// The pool of a library without oneTBB: every loop runs on the thread that asks.
#include "core/base/threads.hpp"

#include "core/base/error.hpp"

namespace attnkit::core {

struct Threads::Arena {};

Threads::Threads(uint32_t threads) : workers_(1) {
  if (threads > 1)
    fail(ATTN_UNSUPPORTED,
         "threads {}: this attnkit is built without oneTBB (ATTNKIT_TBB=OFF) and computes on the thread that asks; "
         "give 0 or 1",
         threads);
}

Threads::~Threads() = default;

void Threads::parallel_for(int64_t n, int64_t, attn_task fn, uintptr_t arg) {
  if (n > 0) fn(arg, 0, n, 0);
}

attn_exec Threads::exec(void* scratch, uint64_t scratch_bytes) {
  const auto loop = [](uintptr_t pool, int64_t n, int64_t grain, attn_task fn, uintptr_t arg) {
    reinterpret_cast<Threads*>(pool)->parallel_for(n, grain, fn, arg);
  };
  return {sizeof(attn_exec), workers_, scratch, scratch_bytes, 0, reinterpret_cast<uintptr_t>(this), loop};
}

}  // namespace attnkit::core
