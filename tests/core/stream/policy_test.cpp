#include "core/stream/policy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace attnkit::core::stream {
namespace {

// The units read when each of `tokens` tokens was written, of a source of `units`; reading past its end is impossible.
std::vector<int64_t> read_at(const Policy& policy, int64_t units, int64_t tokens) {
  std::vector<int64_t> reads;
  View view{sizeof view, 0, 0, 0};
  while (view.written < tokens) {
    if (policy.decide(view) == Action::read) {
      EXPECT_FALSE(view.ended);
      view.ended = ++view.read == units;
      continue;
    }
    reads.push_back(view.read);
    ++view.written;
  }
  return reads;
}

TEST(Policy, WaitKIsItsFormula) {
  for (const int64_t k : {1, 2, 3, 9})
    for (const int64_t step : {1, 2, 7})
      for (const int64_t units : {1, 2, 7, 20, 63}) {
        const std::vector<int64_t> reads = read_at(WaitK(k, step), units, 25);
        for (int64_t i = 1; i <= 25; ++i)
          EXPECT_EQ(reads[static_cast<size_t>(i - 1)], std::min((k + i - 1) * step, units)) << k << " " << step;
      }
}

TEST(Policy, OfflineReadsEverythingFirst) { EXPECT_THAT(read_at(Offline(), 5, 3), testing::Each(5)); }

TEST(Policy, LargestWaitKReadsToTheEnd) {
  const WaitK policy(1 << 20, 1 << 20);
  const View view{sizeof view, 0, 1 << 20, 1 << 20};
  EXPECT_EQ(policy.decide(view), Action::read);
}

TEST(Policy, Names) {
  for (const char* name : {"offline", "wait-k:1", "wait-k:3", "wait-k:3:7"})
    EXPECT_EQ(policy_named(name)->name(), name);
  EXPECT_EQ(policy_named("wait-k:3:1")->name(), "wait-k:3");
}

TEST(Policy, RefusesWhatIsNone) {
  for (const char* name :
       {"", "wait-k", "wait-k:", "wait-k:0", "wait-k:-1", "wait-k:3x", "wait-k:3:", "wait-k:3:0", "wait-k:3:7:1",
        "wait-k:1048577", "wait-k: 3", "wait-k:99999999999999999999", "online", "Offline", "offline:1", "wait-3"})
    EXPECT_THROW(policy_named(name), std::invalid_argument) << name;
}

}  // namespace
}  // namespace attnkit::core::stream
