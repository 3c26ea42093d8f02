// One plugin in one kind of block, and the shapes and calls that the laws are tried on.
#pragma once
#include <gtest/gtest.h>

#include <optional>

#include "support/oracle.hpp"
#include "support/stream.hpp"

namespace attnkit::test {

// The CPU plugins under test: from the environment, else all in the build's plugin folder.
std::vector<std::string> plugin_files();
std::string stem(const std::string& path);

enum class Seat { kEncoder, kDecoder, kCross };

struct Subject {
  std::string file;
  Seat seat;
};
std::ostream& operator<<(std::ostream& out, const Subject& s);
// Every plugin in these seats.
std::vector<Subject> subjects(const std::vector<Seat>& seats = {Seat::kEncoder, Seat::kDecoder, Seat::kCross});
std::string name_of(const testing::TestParamInfo<Subject>& info);

constexpr uint32_t kHeads = 3;
constexpr int32_t kWidth = 24, kValues = 40;  // neither a multiple of 16, and unequal

// Skips the test, visibly, with the mechanism's own sentence when it refuses what a law is about.
#define ATTNKIT_OR_SKIP(statement)                                           \
  try {                                                                      \
    statement;                                                               \
  } catch (const Refused& refused) {                                         \
    if (refused.code != ATTN_UNSUPPORTED) throw;                             \
    GTEST_SKIP() << stem(GetParam().file) << " refuses: " << refused.what(); \
  }

class Law : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override;

  bool causal() const { return GetParam().seat == Seat::kDecoder; }
  bool cross() const { return GetParam().seat == Seat::kCross; }
  // Number of keys that go with n queries in this seat.
  int64_t keys_for(int64_t n) const { return cross() ? n * 3 / 2 + (n > 0 ? 5 : 0) : n; }
  Inputs inputs(int64_t batch, int64_t n, uint64_t seed = 1, Layout layout = Layout::kModel) const {
    return Inputs(*mech, batch, n, keys_for(n), seed, layout);
  }
  // A whole-sequence call; totals are given where the block is causal, since angles may need them.
  Array whole(Inputs& in, Call call = {}, uint32_t workers = 1, uint32_t flags = 0) const;
  // Totals of all rows, for calls that know them.
  Call with_totals(Call call, int64_t batch, int64_t n) const;
  // A plan for streams of up to `chunk` rows at a time with this capacity in keys.
  Planned stream_plan(int64_t batch, int64_t chunk, int64_t capacity, uint32_t workers = 1) const;
  // Feeds rows through a state in chunks: self attention appends and reads together; cross appends all, then reads.
  Array stream(Inputs& in, const std::vector<int64_t>& chunks, uint32_t workers = 1) const;

  std::optional<Mechanism> mech;
};

}  // namespace attnkit::test
