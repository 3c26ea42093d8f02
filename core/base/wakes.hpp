// The processors on which the workers of a pool wake.
//
// Linux wakes a thread that sleeps on the processor of the thread that wakes it, which is about to be busy, and moves
// it only milliseconds later.  So after a rest of the pool its workers are kept off the processor of the caller until
// they have joined the loop, or until it ends; one that was starting a thread then, perhaps until it is kept off again.
// Costs three calls of the system for each worker, after a rest alone.
#pragma once

#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_scheduler_observer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/clock.hpp"
#include "core/base/order.hpp"

namespace attnkit::core {

class Wakes : public tbb::task_scheduler_observer {
 public:
  explicit Wakes(tbb::task_arena& arena);
  ~Wakes() override;

  // A loop that wants this many threads beside the calling one.  Allocates nothing.  Any thread.
  class Loop {
   public:
    Loop(Wakes& wakes, int64_t helpers);
    ~Loop();
    Loop(const Loop&) = delete;

   private:
    Wakes& wakes_;
    bool moved_ = false;
  };

 private:
  class Worker;
  void on_scheduler_entry(bool is_worker) override;

  Order made_, met_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Worker>> workers_;  // those that were ever here
  std::atomic<Clock::rep> last_{0};               // end of the last loop
};

}  // namespace attnkit::core
