// One mechanism, built by several compilers and C++ libraries, in one process.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "tests/abi/compute.hpp"

using namespace attnkit::core;

namespace {

// Each in a registry of its own, as they have the same name.
std::vector<std::unique_ptr<Registry>> all() {
  std::vector<std::unique_ptr<Registry>> registries;
  for (const char* folder : {ABI_MEANS})
    registries.push_back(std::make_unique<Registry>(std::vector<std::string>{folder}));
  return registries;
}

// A request that every mean refuses: each of those in C++ throws, and catches at its own boundary.
int32_t refusal(const Plugin& plugin) {
  attn_block block = cross_block();
  block.role = ATTN_ENCODER_SELF;
  const auto mechanism = Mechanism::create(plugin, block, default_options(plugin));
  try {
    mechanism->plan(cpu_request(ATTN_STREAM, 1, 1, 2, 3, 0));
  } catch (const Error& e) {
    return e.code();
  }
  return ATTN_OK;
}

TEST(Compilers, TheirPluginsShareAProcess) {
  const auto registries = all();
#ifdef ABI_ONE_COMPILER
  GTEST_SKIP() << "a sanitizer's build, or one for another machine, has no plugins by other compilers";
#endif
  const char* ci = std::getenv("CI");
  // gcc, its C++ library linked in, clang, libc++, Rust and C; elsewhere than in CI some may not be installed.
  ASSERT_GE(registries.size(), ci && std::string_view(ci) == "true" ? 6u : 3u);
  std::vector<const Plugin*> plugins;
  for (const auto& registry : registries) {
    const std::string folder = registry->folders().front();
    plugins.push_back(registry->find("mean", 1));
    ASSERT_TRUE(plugins.back()) << folder << ": " << (registry->skipped().empty() ? "" : registry->skipped()[0].reason);
    EXPECT_EQ(compute(*plugins.back()), means) << folder;
    EXPECT_EQ(refusal(*plugins.back()), ATTN_UNSUPPORTED) << folder;
  }
  // No two are one: each has its own table's functions.
  for (size_t i = 0; i < plugins.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(plugins[i]->table.run, plugins[j]->table.run) << i << ", " << j;
  // All at once, one throwing while another computes.
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < plugins.size(); ++t)
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 200; ++i) {
        const Plugin& plugin = *plugins[(t + i) % plugins.size()];
        wrong += i % 2 ? compute(plugin) != means : refusal(plugin) != ATTN_UNSUPPORTED;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
