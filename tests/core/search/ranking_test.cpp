#include "core/search/ranking.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/search/result.hpp"

namespace attnkit::core::search {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// One encoder and one decoder layer; what is measured is made up, 1,000 lists of one token each.
class RankingTest : public ::testing::Test {
 protected:
  RankingTest() {
    for (uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF}) space_.blocks.push_back({role, 1});
    space_.choices = {{"a", "\"a\""}, {"b", "\"b\""}, {"c", "\"c\""}};
    space_.allowed = {{0, 1, 2}, {0, 1, 2}};
    space_.baseline = {0, 0};
    settings_.rank = Rank::rcp_mem;
    settings_.lengths = {64, 512};
  }

  Record record(const Placement& placement, int64_t exact, double throughput, double memory) {
    Record r;
    r.placement = placement;
    r.id = id_of(space_, placement);
    QualitySums sums;
    sums.examples = sums.tokens = 1000;
    sums.exact = sums.right = exact;
    r.quality[{0, 1000}] = {sums};
    r.costs[512] = {{"length", 512},
                    {"decode_ratio", throughput},
                    {"decode_ratio_low", throughput * 0.99},
                    {"decode", throughput},
                    {"latency", 1e-3 / throughput},
                    {"peak_bytes", 1000 * memory},
                    {"baseline_peak_bytes", 1000}};
    return r;
  }

  std::vector<Ranked> ranking(const std::vector<const Record*>& records, std::optional<double> std_bench = 1.0) {
    return rank(records, {settings_, declared_, baseline_, std_bench, 2000});
  }

  // One cost for the whole block at every length.
  void declare(const Placement& placement, uint64_t state) {
    json blocks = json::array();
    for (size_t s = 0; s < space_.blocks.size(); ++s)
      blocks.push_back({{"role", role_name(space_.blocks[s].role)},
                        {"layer", 1},
                        {"costs", {{{"length", 512}, {"state_bytes", s == 1 ? state : 0}}}}});
    declared_.add(space_, placement, {{"blocks", blocks}});
  }

  Space space_;
  Settings settings_;
  Declared declared_;
  Record baseline_;
};

TEST_F(RankingTest, RcpMemDecidesAndTheBaselineHasOne) {
  baseline_ = record({0, 0}, 990, 1, 1);
  const Record fast = record({0, 1}, 980, 3, 0.5), faster = record({1, 1}, 950, 3.5, 0.5);
  const std::vector<Ranked> all = ranking({&baseline_, &faster, &fast});
  EXPECT_EQ(all[0].record, &fast);  // (3 + 2) / 2 / (1 + 1)
  EXPECT_DOUBLE_EQ(*all[0].rcp_mem, 1.25);
  EXPECT_EQ(all[1].record, &baseline_);
  EXPECT_DOUBLE_EQ(*all[1].rcp_mem, 1);
  EXPECT_DOUBLE_EQ(*all[2].rcp_mem, 2.75 / 5);
  EXPECT_EQ(all[0].rank, 1);
  EXPECT_EQ(all[2].rank, 3);
}

TEST_F(RankingTest, WhatIsBetterThanAnyValueSaysComesFirst) {
  baseline_ = record({0, 0}, 980, 1, 1);
  const Record better = record({0, 1}, 995, 1.1, 1), worse = record({1, 1}, 994, 1.05, 1);
  const std::vector<Ranked> all = ranking({&worse, &better, &baseline_});
  EXPECT_EQ(all[0].record, &better);
  EXPECT_FALSE(all[0].rcp.has_value());
  EXPECT_TRUE(all[0].pareto);
  EXPECT_EQ(all[1].record, &worse);
  EXPECT_FALSE(all[1].pareto);
  EXPECT_EQ(all[2].record, &baseline_);
  EXPECT_TRUE(all[2].rcp.has_value());
}

TEST_F(RankingTest, WithoutAUnitOfQualityNothingComesBehindWhatItDominates) {
  baseline_ = record({0, 0}, 980, 1, 1);
  const Record better = record({0, 1}, 995, 1.1, 1), faster = record({1, 1}, 970, 2, 1);
  const std::vector<Ranked> all = ranking({&faster, &baseline_, &better}, std::nullopt);
  EXPECT_EQ(all[0].record, &better);
  EXPECT_EQ(all[1].record, &faster);
  EXPECT_EQ(all[2].record, &baseline_);
}

TEST_F(RankingTest, LimitsFilterBeforeRanksAreGiven) {
  baseline_ = record({0, 0}, 1000, 1, 1);
  settings_.limits.min_quality_ratio = 0.97;
  settings_.limits.max_latency = 0.9e-3;
  settings_.limits.max_state = 500;
  declare({0, 1}, 400);
  declare({1, 1}, 400);
  declare({2, 2}, 600);
  const Record good = record({0, 1}, 980, 1.5, 1), poor = record({1, 1}, 960, 3, 0.1),
               slow = record({0, 1}, 999, 1.1, 1), big = record({2, 2}, 999, 2, 1);
  const std::vector<Ranked> all = ranking({&poor, &big, &slow, &good});
  EXPECT_EQ(all[0].record, &good);
  EXPECT_EQ(all[0].rank, 1);
  for (size_t i = 1; i < all.size(); ++i) EXPECT_FALSE(all[i].rank.has_value());
  EXPECT_THAT(all[1].limit, HasSubstr("min_quality_ratio: 0.9600 is below 0.97"));
  EXPECT_THAT(all[2].limit, HasSubstr("max_state: 600 bytes at 512 tokens are above 500"));
  EXPECT_THAT(all[3].limit, HasSubstr("max_latency: 909 \u00b5s"));
}

TEST_F(RankingTest, FailedOnesComeLast) {
  baseline_ = record({0, 0}, 990, 1, 1);
  Record failed = record({1, 1}, 1000, 9, 0.1);
  failed.status = Record::Status::failed;
  const Record unmeasured = [] {
    Record r;
    r.id = "x";
    return r;
  }();
  const std::vector<Ranked> all = ranking({&failed, &unmeasured, &baseline_});
  EXPECT_EQ(all[0].record, &baseline_);
  EXPECT_EQ(all[1].record, &unmeasured);
  EXPECT_EQ(all[2].record, &failed);
  EXPECT_FALSE(all[2].rank || all[1].rank || all[2].pareto || all[1].pareto);
}

TEST_F(RankingTest, DifferencesAreTakenOnTheSameLists) {
  baseline_ = record({0, 0}, 990, 1, 1);
  QualitySums more;
  more.examples = more.tokens = 1000;
  more.exact = more.right = 500;
  baseline_.quality[{1000, 2000}] = {more};
  const Record other = record({0, 1}, 990, 1, 1);
  EXPECT_DOUBLE_EQ(*ranking({&other})[0].rcp, 1);
}

TEST_F(RankingTest, WithoutASpreadOnlyEqualQualityHasARcp) {
  baseline_ = record({0, 0}, 990, 1, 1);
  const Record equal = record({0, 1}, 990, 2, 1), other = record({1, 1}, 991, 2, 1);
  const std::vector<Ranked> all = ranking({&equal, &other}, std::nullopt);
  EXPECT_EQ(all[0].record, &other);  // which is better and as fast
  EXPECT_FALSE(all[0].rcp.has_value());
  EXPECT_DOUBLE_EQ(*all[1].rcp, 2);
}

TEST_F(RankingTest, TheAnswerNamesLengthStateAndCrossover) {
  settings_.rank = Rank::throughput;
  baseline_ = record({0, 0}, 1000, 1, 1);
  Record winner = record({0, 1}, 991, 1.4, 0.5);
  winner.costs[64] = {{"length", 64}, {"decode_ratio", 0.9}, {"decode_ratio_low", 0.88}};
  declare({0, 0}, 15000);
  declare({0, 1}, 1000);
  const std::vector<Ranked> all = ranking({&winner, &baseline_});
  const std::string text = answer_text({space_, settings_, declared_, all[0], all[1], false});
  EXPECT_EQ(text,
            "At 512 tokens, encoder.self a, decoder.self b keeps 99.1 % of a's exact match on 1000 examples of dev at "
            "1.40x its decode throughput and 1/15 of the state of decoder.self; below 154 tokens a is as fast.");
  settings_.effort = Effort::quick;
  EXPECT_THAT(
      answer_text({space_, settings_, declared_, all[0], all[1], false, 3, "1000 examples are too few"}),
      testing::AllOf(testing::StartsWith("By a screening alone: at 512 tokens, "),
                     testing::EndsWith("as fast. 2 others are not told apart from it: 1000 examples are too few.")));
  EXPECT_THAT(answer_text({space_, settings_, declared_, all[0], all[1], false, 1, "", 12}),
              testing::EndsWith("as fast. Only 12 examples decide, a handful: take more before you rely on it."));
  EXPECT_THAT(answer_text({space_, settings_, declared_, all[0], all[1], false, 1, "", 500, 45}),
              testing::EndsWith("as fast. 45 of the 500 examples repeat others word for word, so intervals are "
                                "narrower than they should be."));
  EXPECT_THAT(answer_text({space_, settings_, declared_, all[0], all[1], false, 1, "", 500, 5}),
              testing::EndsWith("as fast."));
  EXPECT_THAT(answer_text({space_, settings_, declared_, all[0], all[1], true, 1, "", 500, 0, false, true}),
              testing::EndsWith("as fast. The test set is the data of the race, so it is no check of the choice."));
  winner.costs[64]["decode_ratio_low"] = 1.1;
  EXPECT_EQ(crossover(winner), 0);
  winner.costs[2048] = {{"length", 2048}, {"decode_ratio", 0.07}, {"decode_ratio_low", 0.06}};
  EXPECT_FALSE(crossover(winner).has_value()) << "it is faster up to some length, not from one on";
  EXPECT_THAT(answer_text({space_, settings_, declared_, all[0], all[1], false}),
              HasSubstr("; from 2048 tokens on a is at least as fast."));
  winner.costs[4096] = {{"length", 4096}, {"decode_ratio", 1.07}, {"decode_ratio_low", 1.05}};
  EXPECT_EQ(crossover(winner), 2048 + 1905);
  winner.costs.erase(2048);
  winner.costs.erase(4096);
  winner.costs[512]["decode_ratio_low"] = winner.costs[64]["decode_ratio_low"] = 0.99;
  EXPECT_FALSE(crossover(winner).has_value());
  EXPECT_THAT(answer_text({space_, settings_, declared_, all[1], all[1], false}), HasSubstr("nothing that was tried"));
}

TEST_F(RankingTest, TheAnswerNamesEveryLayerOfARoleThatIsMixed) {
  settings_.rank = Rank::throughput;
  space_.blocks.clear();
  for (int layer = 1; layer <= 3; ++layer) space_.blocks.push_back({ATTN_ENCODER_SELF, layer});
  space_.allowed = {{0, 1, 2}, {0, 1, 2}, {0, 1, 2}};
  space_.baseline = {0, 0, 0};
  baseline_ = record({0, 0, 0}, 1000, 1, 1);
  for (const Placement& placement : {Placement{1, 2, 0}, Placement{2, 2, 2}}) {
    const Record winner = record(placement, 991, 1.4, 0.5);
    declare({0, 0, 0}, 15000);
    declare(placement, 1000);
    const std::vector<Ranked> all = ranking({&winner, &baseline_});
    EXPECT_THAT(answer_text({space_, settings_, declared_, all[0], all[1], false}),
                HasSubstr(placement[0] == 1 ? "encoder.self b-c-a keeps" : "encoder.self c keeps"));
  }
}

TEST_F(RankingTest, QualityThatIsLeftOutDecidesNothing) {
  baseline_ = record({0, 0}, 980, 1, 1);
  const Record better = record({0, 1}, 995, 1.1, 1), faster = record({1, 1}, 500, 2, 1);
  for (double RcpSettings::*one : {&RcpSettings::quality, &RcpSettings::quality_weight})
    for (const std::optional<double> std_bench : {std::optional(1.0), std::optional<double>()}) {
      settings_.weights = {};
      settings_.weights.*one = 0;
      const std::vector<Ranked> all = ranking({&better, &baseline_, &faster}, std_bench);
      EXPECT_EQ(all[0].record, &faster);
      EXPECT_EQ(all[1].record, &better);
      EXPECT_DOUBLE_EQ(all[0].rcp.value(), 2);
    }
}

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
}  // namespace attnkit::core::search
