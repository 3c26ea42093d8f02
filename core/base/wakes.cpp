#include "core/base/wakes.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace attnkit::core {
namespace {

constexpr Clock::duration rest = std::chrono::milliseconds(1);

Clock::rep now() { return Clock::now().time_since_epoch().count(); }

}  // namespace

// A thread of oneTBB, and the processors that it may use.
class Wakes::Worker {
 public:
  static const std::shared_ptr<Worker>& self() {
    thread_local const Owner owner;
    return owner.worker;
  }

  // False if it is the caller itself, or may use no other processor.
  bool keep_off(int processor, const Loop* loop) {
    const std::lock_guard lock(mutex_);
    cpu_set_t current;
    if (ended_ || loop_ || id_ == gettid() || sched_getaffinity(id_, sizeof current, &current) != 0) return false;
    // oneTBB gives a worker that started a thread what it had before, perhaps from a loop that has ended.
    if (!CPU_EQUAL(&current, &others_)) allowed_ = current;
    cpu_set_t others = allowed_;
    CPU_CLR(static_cast<size_t>(processor), &others);
    if (CPU_COUNT(&others) == 0 || sched_setaffinity(id_, sizeof others, &others) != 0) return false;
    others_ = others;
    loop_ = loop;
    return true;
  }
  // Of this loop, or of any.
  void release(const Loop* loop = nullptr) {
    const std::lock_guard lock(mutex_);
    if (!loop_ || (loop && loop != loop_)) return;
    if (!ended_) sched_setaffinity(id_, sizeof allowed_, &allowed_);
    loop_ = nullptr;
  }

 private:
  // The number of a thread that has ended may be another's.
  struct Owner {
    std::shared_ptr<Worker> worker = std::make_shared<Worker>();
    ~Owner() {
      const std::lock_guard lock(worker->mutex_);
      worker->ended_ = true;
    }
  };
  std::mutex mutex_;
  const pid_t id_ = gettid();
  bool ended_ = false;
  const Loop* loop_ = nullptr;       // that keeps it off its caller's processor
  cpu_set_t allowed_, others_ = {};  // before, and meanwhile
};

Wakes::Wakes(tbb::task_arena& arena) : tbb::task_scheduler_observer(arena) {
  arena.initialize();  // an observer that fails to do it cannot be destroyed
  made_.before();
  observe(true);
}
Wakes::~Wakes() {
  observe(false);
  met_.behind();
}

void Wakes::on_scheduler_entry(bool is_worker) {
  if (!is_worker) return;
  made_.behind();
  const auto& self = Worker::self();
  self->release();
  {
    const std::lock_guard lock(mutex_);
    if (std::find(workers_.begin(), workers_.end(), self) == workers_.end()) workers_.push_back(self);
  }
  met_.before();
}

Wakes::Loop::Loop(Wakes& wakes, int64_t helpers) : wakes_(wakes) {
  if (now() - wakes.last_.load(std::memory_order_relaxed) < rest.count()) return;
  const int here = sched_getcpu();
  const std::lock_guard lock(wakes.mutex_);
  for (size_t i = 0; here >= 0 && i < wakes.workers_.size() && helpers > 0; ++i)
    if (wakes.workers_[i]->keep_off(here, this)) {
      moved_ = true;
      --helpers;
    }
}
Wakes::Loop::~Loop() {
  if (moved_) {
    const std::lock_guard lock(wakes_.mutex_);
    for (const auto& worker : wakes_.workers_) worker->release(this);
  }
  wakes_.last_.store(now(), std::memory_order_relaxed);
}

}  // namespace attnkit::core
