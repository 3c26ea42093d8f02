#include "core/search/leader.hpp"

#include <gtest/gtest.h>

namespace attnkit::search {
namespace {

// Records that are ranked by a made-up throughput; how often one is looked at is counted.
class LeaderTest : public testing::Test {
 protected:
  const Record* add(double throughput) {
    records_.emplace_back();
    set(records_.back(), throughput);
    return follow(records_.back());
  }
  void set(Record& record, double throughput) { record.costs[1] = {{"decode_ratio", throughput}}; }
  const Record* follow(const Record& changed) {
    const Ranked* best = leader_.update(changed, records_);
    return best ? best->record : nullptr;
  }

  Settings settings_ = [] {
    Settings s;
    s.rank = Rank::throughput;
    return s;
  }();
  std::deque<Record> records_;
  size_t looks_ = 0;
  Leader leader_{settings_, [this](const Record& record) {
                   ++looks_;
                   Ranked r;
                   r.record = &record;
                   r.quality = Quality{};
                   r.throughput = cost_of(record, 1, "decode_ratio");
                   return r;
                 }};
};

TEST_F(LeaderTest, ThousandsOfTrialsAreLookedAtOnceEach) {
  double best = 0;
  for (size_t i = 0; i < 5000; ++i) {
    const double throughput = static_cast<double>(i * 7919 % 5000);
    best = std::max(best, throughput);
    ASSERT_EQ(*cost_of(*add(throughput), 1, "decode_ratio"), best);
  }
  EXPECT_EQ(looks_, 5000u);
}

TEST_F(LeaderTest, ALeaderThatFallsBackIsReplaced) {
  add(1);
  add(3);
  add(2);
  Record& first = records_[1];
  EXPECT_EQ(follow(records_[2]), &first);
  set(first, 1.5);
  EXPECT_EQ(follow(first), &records_[2]);
  records_[2].status = Record::Status::failed;
  EXPECT_EQ(follow(records_[2]), &first);
}

TEST_F(LeaderTest, NothingThatCanBeRankedHasNoLeader) {
  records_.emplace_back();
  EXPECT_EQ(follow(records_[0]), nullptr);
  EXPECT_NE(add(1), nullptr);
}

TEST_F(LeaderTest, ARestartLooksAtAll) {
  add(1);
  add(2);
  set(records_[0], 5);
  leader_.restart();
  EXPECT_EQ(follow(records_[1]), &records_[0]);
}

}  // namespace
}  // namespace attnkit::search
