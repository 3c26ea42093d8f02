#include "core/model/workspace.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace attnkit::core {
namespace {

TEST(WorkspacePool, GivesAThreadItsOwnAgain) {
  WorkspacePool pool;
  auto first = pool.take(), second = pool.take();
  const Workspace *one = first.get(), *two = second.get();
  EXPECT_NE(one, two);
  first.reset();
  second.reset();
  EXPECT_EQ(pool.take().get(), one);
}

TEST(WorkspacePool, KeepsNoMoreThanABurstMayLeave) {
  WorkspacePool pool;
  std::vector<WorkspacePool::Lease> all;
  for (int i = 0; i < 100; ++i) {
    all.push_back(pool.take());
    all.back()->ids = {i};
  }
  for (auto& workspace : all) workspace.reset();
  int kept = 0;
  for (auto& workspace : all) kept += !(workspace = pool.take())->ids.empty();
  EXPECT_EQ(kept, 64);
}

TEST(WorkspacePool, NeverGivesOneToTwo) {
  WorkspacePool pool;
  std::atomic<int> shared{0};
  const auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      const auto workspace = pool.take();
      if (!workspace->ids.empty()) ++shared;
      workspace->ids.push_back(i);
      std::this_thread::yield();
      workspace->ids.clear();
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 100; ++t) threads.emplace_back(work);
  for (auto& t : threads) t.join();
  EXPECT_EQ(shared, 0);
}

}  // namespace
}  // namespace attnkit::core
