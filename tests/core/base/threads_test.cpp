// Loops cover everything once, in large enough pieces, with worker ids that nobody shares.
#include "core/base/threads.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/sanitized.hpp"

using namespace attnkit::core;

namespace {

// oneTBB's arena is made before anything watches it.
TEST(Threads, WithoutMemoryAreRefused) {
  if (sanitized) GTEST_SKIP() << "sanitizers reserve address space of their own";
  for (rlim_t more = 0; more < 20'000'000; more += 500'000) {
    const pid_t child = fork();
    if (child == 0) {
      rlim_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const rlim_t most = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + more;
      const rlimit limit{most, most};
      setrlimit(RLIMIT_AS, &limit);
      try {
        const Threads threads(2);
      } catch (const std::bad_alloc&) {
      }
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << more << " bytes more: signal " << WTERMSIG(status);
  }
}

TEST(Threads, CoversEveryIndexOnceInPiecesOfAtLeastTheGrain) {
  for (const uint32_t workers : {1u, 2u, 4u, 7u}) {
    Threads threads(workers);
    EXPECT_EQ(threads.workers(), workers);
    for (const int64_t n : {0, 1, 2, 63, 64, 100, 1001}) {
      for (const int64_t grain : {0, 1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
        std::atomic<int64_t> shortest{n};
        threads.each(n, grain, [&](int64_t begin, int64_t end, uint32_t worker) {
          EXPECT_LT(worker, workers);
          EXPECT_LT(begin, end);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
          for (int64_t old = shortest; end - begin < old && !shortest.compare_exchange_weak(old, end - begin);) {
          }
        });
        for (const auto& hit : hits) ASSERT_EQ(hit, 1) << workers << " " << n << " " << grain;
        EXPECT_GE(shortest, std::min(n, std::max<int64_t>(grain, n > 0)));
      }
    }
  }
}

TEST(Threads, ZeroMeansOnePerProcessorAndNonsenseIsCapped) {
  EXPECT_GE(Threads(0).workers(), 1u);
  EXPECT_LE(Threads(4'000'000'000u).workers(), 1024u);
}

TEST(Threads, AreNoMoreThanTheAffinityMaskHas) {
  const pid_t child = fork();
  if (child == 0) {
    // oneTBB has asked the machine before: a new process asks again.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    execl("/proc/self/exe", "threads", "--gtest_filter=Threads.DISABLED_HaveOneProcessor",
          "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Of the process above.
TEST(Threads, DISABLED_HaveOneProcessor) { EXPECT_EQ(Threads(0).workers(), 1u); }

TEST(Threads, RunsInlineWhenOnePieceIsEnough) {
  Threads threads(4);
  const auto self = std::this_thread::get_id();
  for (const int64_t n : {1, 10, 19}) {
    int calls = 0;
    threads.each(n, 10, [&](int64_t begin, int64_t end, uint32_t worker) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      EXPECT_EQ(worker, 0u);
      EXPECT_EQ(end - begin, n);
      ++calls;
    });
    EXPECT_EQ(calls, 1);
  }
}

TEST(Threads, UsesSeveralThreads) {
  Threads threads(4);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  for (int trial = 0; trial < 50 && seen.size() < 2; ++trial) {
    threads.each(16, 1, [&](int64_t, int64_t, uint32_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
  }
  EXPECT_GE(seen.size(), 2u);
}

TEST(Threads, PoolsBeyondTheProcessorsAreNotLoweredByOthersAndPrintNothing) {
  testing::internal::CaptureStderr();
  Threads many(8), few(3);
  std::mutex mutex;
  std::set<uint32_t> seen;
  for (int trial = 0; trial < 50 && seen.size() <= few.workers(); ++trial) {
    for (Threads* threads : {&few, &many}) {
      threads->each(64, 1, [&](int64_t, int64_t, uint32_t worker) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const std::lock_guard lock(mutex);
        if (threads == &many) seen.insert(worker);
      });
    }
  }
  EXPECT_GT(seen.size(), few.workers());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// Every loop has its own slots; two bodies of one loop must never be in the same one.
void loop_with_slots(Threads& threads, std::atomic<int64_t>& sum) {
  std::vector<std::atomic<int>> busy(threads.workers());
  threads.each(200, 1, [&](int64_t begin, int64_t end, uint32_t worker) {
    EXPECT_EQ(busy[worker].fetch_add(1), 0);
    for (int64_t i = begin; i < end; ++i) sum += i;
    std::this_thread::yield();
    --busy[worker];
  });
}

TEST(Threads, ServesManyCallersWithUniqueWorkers) {
  Threads threads(4);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      for (int trial = 0; trial < 50; ++trial) loop_with_slots(threads, sum);
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(sum, 8 * 50 * (199 * 200 / 2));
}

TEST(Threads, NestedLoopsStayOnTheirThreadAndWorker) {
  Threads threads(4);
  std::atomic<int> inner{0};
  threads.each(64, 1, [&](int64_t, int64_t, uint32_t outer) {
    const auto self = std::this_thread::get_id();
    threads.each(100, 1, [&](int64_t begin, int64_t end, uint32_t worker) {
      EXPECT_EQ(worker, outer);
      EXPECT_EQ(std::this_thread::get_id(), self);
      inner += static_cast<int>(end - begin);
    });
  });
  EXPECT_GE(inner, 100);
  EXPECT_EQ(inner % 100, 0);
}

TEST(Threads, ExceptionsReachTheCaller) {
  Threads threads(3);
  for (const int64_t grain : {1, 1000}) {
    EXPECT_THROW(threads.each(100, grain, [](int64_t, int64_t, uint32_t) { throw std::runtime_error("body"); }),
                 std::runtime_error);
  }
  int64_t sum = 0;
  threads.each(10, 10, [&](int64_t begin, int64_t end, uint32_t) { sum += end - begin; });
  EXPECT_EQ(sum, 10);
}

TEST(Threads, ExecIsWhatPluginsUse) {
  Threads threads(3);
  alignas(64) char scratch[64];
  const attn_exec exec = threads.exec(scratch, sizeof(scratch));
  EXPECT_EQ(exec.struct_size, sizeof(attn_exec));
  EXPECT_EQ(exec.workers, 3u);
  EXPECT_EQ(exec.scratch, scratch);
  EXPECT_EQ(exec.scratch_bytes, sizeof(scratch));
  EXPECT_EQ(exec.stream, 0u);
  std::atomic<int64_t> sum{0};
  exec.parallel_for(
      exec.pool, 1000, 10,
      [](uintptr_t arg, int64_t begin, int64_t end, uint32_t) {
        *reinterpret_cast<std::atomic<int64_t>*>(arg) += end - begin;
      },
      reinterpret_cast<uintptr_t>(&sum));
  EXPECT_EQ(sum, 1000);
}

int64_t sum_of(Threads& threads) {
  std::atomic<int64_t> sum{0};
  threads.each(3000, 1, [&](int64_t begin, int64_t end, uint32_t) {
    for (int64_t i = begin; i < end; ++i) sum += i;
  });
  return sum;
}

// The workers are not there in the child, nor whoever would unlock what was locked at that moment.
TEST(Threads, ChildrenOfForkRunOnOneThread) {
  Threads threads(3);
  constexpr int64_t whole = 2999 * 3000 / 2;
  std::atomic<bool> done{false};
  std::thread busy([&] {
    while (!done) {
      EXPECT_EQ(sum_of(threads), whole);
      std::this_thread::sleep_for(std::chrono::microseconds(1200));  // a rest of the pool
    }
  });
  int failed = 0;
  for (int trial = 0; trial < 300 && failed == 0; ++trial) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // ends a child that waits for what is not there
      _exit(sum_of(threads) == whole && sum_of(*std::make_unique<Threads>(2)) == whole ? 0 : 1);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) failed = trial + 1;
    EXPECT_EQ(status, 0) << "child " << trial;
  }
  done = true;
  busy.join();
}

}  // namespace
