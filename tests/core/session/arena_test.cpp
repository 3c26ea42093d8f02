#include "core/session/arena.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

TEST(Arena, GivesDistinctEmptySlots) {
  Arena arena({64, 1 << 20});
  const int32_t a = arena.acquire(), b = arena.acquire();
  EXPECT_NE(a, b);
  for (size_t block = 0; block < arena.blocks(); ++block)
    for (uint64_t i = 0; i < arena.stride(block); ++i) ASSERT_EQ(arena.row(block, b)[i], 0);
}

TEST(Arena, ReleasedSlotsComeBackEmpty) {
  Arena arena({64, 1 << 20});
  const int32_t slot = arena.acquire();
  for (size_t block = 0; block < arena.blocks(); ++block)
    std::memset(arena.row(block, slot), 0x5a, arena.stride(block));
  arena.release(slot, {64, 1 << 20});
  ASSERT_EQ(arena.acquire(), slot);
  for (size_t block = 0; block < arena.blocks(); ++block)
    for (uint64_t i = 0; i < arena.stride(block); ++i) ASSERT_EQ(arena.row(block, slot)[i], 0) << block << " at " << i;
}

// Strides below and above what goes back to the system as whole pages; slots that begin and end inside of a page.
TEST(Arena, ClearsTheSlotThatIsReleasedAndOnlyThat) {
  for (const uint64_t stride : {uint64_t{3 * 4096 + 64}, uint64_t{20 * 4096 + 64}, uint64_t{32 * 4096}})
    for (const uint64_t unused : {uint64_t{0}, uint64_t{64}, uint64_t{4096}}) {
      Arena arena({stride});
      std::vector<int32_t> slots;
      for (int i = 0; i < 5; ++i) slots.push_back(arena.acquire());
      for (const size_t i : {size_t{1}, size_t{3}, size_t{2}}) {
        for (const int32_t slot : slots) std::memset(arena.row(0, slot), 1, stride - unused);
        arena.release(slots[i], {stride - unused});
        for (const int32_t slot : slots) {
          const char* const row = arena.row(0, slot);
          const char expected = slot == slots[i] ? 0 : 1;
          ASSERT_TRUE(std::all_of(row, row + stride - unused, [&](char c) { return c == expected; }))
              << stride << ": slot " << slot << " after the release of " << slots[i];
        }
        ASSERT_EQ(arena.acquire(), slots[i]);
      }
    }
}

int64_t pages_in_memory(Arena& arena, uint64_t bytes) {
  std::vector<unsigned char> pages(bytes / static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(0, mincore(arena.base(0), bytes, pages.data()));
  return std::ranges::count_if(pages, [](unsigned char p) { return p & 1; });
}

// Whatever the system does with huge pages elsewhere.
TEST(Arena, CostsThePagesThatWereWritten) {
  const uint64_t stride = 4 << 20;
  Arena arena({stride});
  constexpr uint64_t sessions = 8;
  for (uint64_t i = 0; i < sessions; ++i) arena.row(0, arena.acquire())[0] = 1;
  EXPECT_EQ(pages_in_memory(arena, sessions * stride), int64_t{sessions});
}

TEST(Arena, GivesPagesOfReleasedSlotsBack) {
  const uint64_t stride = 4 << 20;
  Arena arena({stride});
  const int32_t slot = arena.acquire();
  std::memset(arena.row(0, slot), 1, stride);
  arena.release(slot, {stride});
  EXPECT_EQ(pages_in_memory(arena, stride), 0);
}

TEST(Arena, RunsOutWithAMessage) {
  Arena arena({uint64_t{1} << 36});
  std::set<int32_t> taken;
  try {
    for (;;) taken.insert(arena.acquire());
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ATTN_NO_MEMORY);
    EXPECT_NE(std::string(e.what()).find("destroy sessions"), std::string::npos);
  }
  EXPECT_EQ(static_cast<int64_t>(taken.size()), arena.slots());
}

TEST(Arena, RefusesMoreThanTheAddressSpace) { EXPECT_THROW(Arena({uint64_t{1} << 50}), Error); }

TEST(Arena, ServesManyThreads) {
  Arena arena({64});
  std::vector<std::vector<int32_t>> slots(4);
  std::vector<std::thread> threads;
  for (auto& mine : slots)
    threads.emplace_back([&arena, &mine] {
      for (int i = 0; i < 500; ++i) mine.push_back(arena.acquire());
    });
  for (auto& t : threads) t.join();
  std::set<int32_t> all;
  for (const auto& mine : slots) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 2000u);
}

}  // namespace
}  // namespace attnkit::core
