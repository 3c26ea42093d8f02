#include "core/model/workspace_pool.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "core/model/model.hpp"

namespace attnkit {
namespace {

TEST(WorkspacePool, GivesAThreadItsOwnAgain) {
  WorkspacePool pool;
  auto first = pool.take(), second = pool.take();
  const ModelWorkspace *one = first.get(), *two = second.get();
  EXPECT_NE(one, two);
  pool.give(std::move(first));
  pool.give(std::move(second));
  EXPECT_EQ(pool.take().get(), one);
}

TEST(WorkspacePool, KeepsNoMoreThanABurstMayLeave) {
  WorkspacePool pool;
  std::vector<std::unique_ptr<ModelWorkspace>> all;
  for (int i = 0; i < 100; ++i) {
    all.push_back(pool.take());
    all.back()->ids = {i};
  }
  for (auto& workspace : all) pool.give(std::move(workspace));
  int kept = 0;
  for (auto& workspace : all) kept += !(workspace = pool.take())->ids.empty();
  EXPECT_EQ(kept, 64);
}

TEST(WorkspacePool, NeverGivesOneToTwo) {
  WorkspacePool pool;
  std::atomic<int> shared{0};
  const auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      auto workspace = pool.take();
      if (!workspace->lengths.empty()) ++shared;
      workspace->lengths.push_back(i);
      std::this_thread::yield();
      workspace->lengths.clear();
      pool.give(std::move(workspace));
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 100; ++t) threads.emplace_back(work);
  for (auto& t : threads) t.join();
  EXPECT_EQ(shared, 0);
}

}  // namespace
}  // namespace attnkit
