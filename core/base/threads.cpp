// Loops over a oneTBB arena: few, large pieces; the arena's slot of a thread is its worker id.
#include "core/base/threads.hpp"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "core/base/order.hpp"
#include "core/base/processors.hpp"
#include "core/base/wakes.hpp"

namespace attnkit::core {
namespace {

// More pieces than workers even out pieces that cost more than others (causal rows).
constexpr int64_t pieces_per_worker = 4;

// The body that this thread is running, so that a loop inside it stays on this thread and keeps its worker id.
struct Running {
  const void* pool = nullptr;
  uint32_t worker = 0;
};
thread_local Running running;

class Mark {
 public:
  Mark(const void* pool, uint32_t worker) : before_(running) { running = {pool, worker}; }
  ~Mark() { running = before_; }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

 private:
  Running before_;
};

// A child of fork() has none of its parent's workers, and what they had locked stays locked: its loops run on the
// thread that asks, also those of pools that it makes.
std::atomic<bool> forked{false};

void watch_forks() {
  static const int failed = pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  if (failed != 0) throw std::bad_alloc();
}

// oneTBB keeps to one thread per processor unless it is told otherwise, prints a warning where an arena wants more
// before that, and obeys the lowest of several such controls: so the process has one, of its largest pool.  It is never
// given back: at the end of a child of fork() that could wait for a lock.
int allowed(uint32_t workers) {
  using tbb::global_control;
  static std::mutex mutex;
  static const global_control* control = nullptr;
  const std::lock_guard lock(mutex);
  if (workers > global_control::active_value(global_control::max_allowed_parallelism))
    delete std::exchange(control, new global_control(global_control::max_allowed_parallelism, workers));
  return static_cast<int>(workers);
}

}  // namespace

struct Threads::Arena {
  explicit Arena(uint32_t workers) : arena(allowed(workers)) {}
  tbb::task_arena arena;
  Wakes wakes{arena};
};

Threads::Threads(uint32_t threads) : workers_(std::min(threads == 0 ? usable_processors() : threads, 1024u)) {
  if (workers_ == 1 || forked) return;
  watch_forks();
  arena_ = std::make_unique<Arena>(workers_);
}

Threads::~Threads() {
  if (forked) (void)arena_.release();  // would wait for workers
}

void Threads::parallel_for(int64_t n, int64_t grain, attn_task fn, uintptr_t arg) {
  if (n <= 0) return;
  const int64_t pieces = std::min(n / std::max<int64_t>(grain, 1), pieces_per_worker * workers_);
  const bool nested = running.pool == this;
  if (nested || !arena_ || pieces < 2 || forked.load(std::memory_order_relaxed)) {
    const Mark mark(this, nested ? running.worker : 0);
    fn(arg, 0, n, running.worker);
    return;
  }
  const int64_t size = n / pieces, longer = n % pieces;  // the first `longer` pieces have one more
  Order begun, ended;
  // Not sanitized themselves: it is oneTBB that brings them to their threads.
  auto piece = [&](int64_t i) __attribute__((no_sanitize("thread"))) {
    begun.behind();
    const int64_t begin = i * size + std::min(i, longer);
    const Mark mark(this, static_cast<uint32_t>(tbb::this_task_arena::current_thread_index()));
    fn(arg, begin, begin + size + (i < longer), running.worker);
    ended.before();
  };
  const auto all = [&]() __attribute__((no_sanitize("thread"))) {
    tbb::parallel_for(int64_t{0}, pieces, piece, tbb::simple_partitioner());
  };
  begun.before();
  const Wakes::Loop loop(arena_->wakes, pieces - 1);
  arena_->arena.execute(all);
  ended.behind();
}

attn_exec Threads::exec(void* scratch, uint64_t scratch_bytes) {
  const auto loop = [](uintptr_t pool, int64_t n, int64_t grain, attn_task fn, uintptr_t arg) {
    reinterpret_cast<Threads*>(pool)->parallel_for(n, grain, fn, arg);
  };
  return {sizeof(attn_exec), workers_, scratch, scratch_bytes, 0, reinterpret_cast<uintptr_t>(this), loop};
}

}  // namespace attnkit::core
