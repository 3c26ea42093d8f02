// The one thread pool (oneTBB), handed to plugins as parallel_for.  After fork() the child computes the same on the
// thread that asks.
#pragma once

#include <attnkit/plugin.h>

#include <cstdint>
#include <memory>

namespace attnkit::core {

class Threads {
 public:
  // threads: the caller included; 0 = one per usable processor.
  explicit Threads(uint32_t threads);
  ~Threads();
  uint32_t workers() const { return workers_; }
  // Runs fn over [0, n) in pieces of at least grain; inline when one piece is enough.  Any thread; not nested.
  void parallel_for(int64_t n, int64_t grain, attn_task fn, uintptr_t arg);
  // fn(begin, end, worker)
  template <class F>
  void each(int64_t n, int64_t grain, F&& fn) {
    parallel_for(
        n, grain,
        [](uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
          (*reinterpret_cast<std::remove_reference_t<F>*>(arg))(begin, end, worker);
        },
        reinterpret_cast<uintptr_t>(&fn));
  }
  // Returns an exec over this pool with the given scratch.
  attn_exec exec(void* scratch, uint64_t scratch_bytes);

 private:
  struct Arena;
  std::unique_ptr<Arena> arena_;
  uint32_t workers_;
};

}  // namespace attnkit::core
