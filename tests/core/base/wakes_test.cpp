// After a rest the workers of a pool may not wake on the processor of the caller, and only until they are awake.
#include "core/base/wakes.hpp"

#include <gtest/gtest.h>
#include <oneapi/tbb/parallel_for.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/base/order.hpp"
#include "core/base/threads.hpp"

using namespace attnkit::core;

namespace {

// The processors that each thread of this process may use.
std::map<std::string, std::vector<int>> allowed() {
  std::map<std::string, std::vector<int>> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string id = entry.path().filename();
    cpu_set_t set;
    if (sched_getaffinity(std::stoi(id), sizeof set, &set) != 0) continue;
    for (int c = 0; c < CPU_SETSIZE; ++c)
      if (CPU_ISSET(static_cast<size_t>(c), &set)) all[id].push_back(c);
  }
  return all;
}

void rest() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

void work(tbb::task_arena& arena) {
  arena.execute(
      [] { tbb::parallel_for(0, 64, [](int) { std::this_thread::sleep_for(std::chrono::microseconds(200)); }); });
}

TEST(Wakes, WorkersAreKeptOffTheCallersProcessorAfterARest) {
  tbb::task_arena arena(2);
  Wakes wakes(arena);
  if (allowed().begin()->second.size() < 2) GTEST_SKIP() << "this process may use one processor";
  bool seen = false;
  for (int i = 0; i < 500 && !seen; ++i) {
    work(arena);  // a worker need not come each time
    const auto before = allowed();
    rest();
    const int here = sched_getcpu();
    const Wakes::Loop loop(wakes, 1);
    if (sched_getcpu() != here) continue;
    int moved = 0;
    for (const auto& [id, now] : allowed()) {
      if (before.count(id) == 0 || now == before.at(id)) continue;
      ++moved;
      std::vector<int> others = before.at(id);
      std::erase(others, here);
      EXPECT_EQ(others, now);
    }
    EXPECT_LE(moved, 1);
    seen = moved == 1;
  }
  EXPECT_TRUE(seen) << "no worker was ever kept off";

  const auto before = allowed();
  rest();
  { const Wakes::Loop loop(wakes, 1); }
  const Wakes::Loop at_once(wakes, 1);
  EXPECT_EQ(before, allowed()) << "there was no rest";
}

TEST(Wakes, AWorkerThatHasJoinedMayRunAnywhereAgain) {
  tbb::task_arena arena(2);
  Wakes wakes(arena);
  work(arena);
  const std::vector<int> before = allowed().begin()->second;
  if (before.size() < 2) GTEST_SKIP() << "this process may use one processor";
  std::atomic<int> freed = 0;
  for (int i = 0; i < 500 && freed == 0; ++i) {
    rest();
    {
      const Wakes::Loop loop(wakes, 1);
      const auto kept_off = allowed();
      Order order;
      order.before();
      arena.execute([&] {
        tbb::parallel_for(0, 64, [&](int) {
          order.behind();
          std::this_thread::sleep_for(std::chrono::microseconds(200));
          const std::string id = std::to_string(gettid());
          const auto then = kept_off.find(id);
          // One that had not left since the loop before does not join again; it is let go at the end.
          if (then != kept_off.end() && then->second != before && allowed()[id] == before) ++freed;
        });
      });
    }
    for (const auto& [id, now] : allowed()) EXPECT_EQ(before, now) << "the loop has ended";
  }
  EXPECT_GT(freed, 0) << "no worker that was kept off was let go when it joined";
}

// As oneTBB gives it what it had before it started a thread, when the loop has ended.
TEST(Wakes, AWorkerThatIsGivenBackLessIsFreedByTheNextLoop) {
  tbb::task_arena arena(2);
  Wakes wakes(arena);
  if (allowed().begin()->second.size() < 2) GTEST_SKIP() << "this process may use one processor";
  bool seen = false;
  for (int i = 0; i < 500 && !seen; ++i) {
    work(arena);  // a worker need not come each time
    const auto before = allowed();
    rest();
    std::map<std::string, std::vector<int>> kept_off;
    {
      const Wakes::Loop loop(wakes, 1);
      kept_off = allowed();
    }
    for (const auto& [id, now] : kept_off) {
      if (before.count(id) == 0 || now == before.at(id)) continue;
      cpu_set_t less;
      CPU_ZERO(&less);
      for (const int c : now) CPU_SET(static_cast<size_t>(c), &less);
      ASSERT_EQ(0, sched_setaffinity(std::stoi(id), sizeof less, &less));
      seen = true;
    }
    rest();
    { const Wakes::Loop loop(wakes, 1); }
    EXPECT_EQ(before, allowed());
  }
  EXPECT_TRUE(seen) << "no worker was ever kept off";
}

TEST(Wakes, AWorkerThatMayUseOneProcessorKeepsIt) {
  Threads threads(2);
  cpu_set_t all, one;
  ASSERT_EQ(0, sched_getaffinity(0, sizeof all, &all));
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
  ASSERT_EQ(0, sched_setaffinity(0, sizeof one, &one));  // a new worker takes it over
  for (int i = 0; i < 3; ++i) {
    std::atomic<int> sum = 0;
    threads.each(16, 1, [&](int64_t begin, int64_t end, uint32_t) { sum += static_cast<int>(end - begin); });
    EXPECT_EQ(sum, 16);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_EQ(0, sched_setaffinity(0, sizeof all, &all));
}

}  // namespace
