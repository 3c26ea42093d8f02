// bigbird against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <set>

#include "reference.hpp"
#include "support/cost.hpp"
#include "support/golden.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

WeightOf weights(const Sizes& s) {
  return by_head([s](Inputs& in, int64_t b, int64_t h, const std::vector<int64_t>&) {
    const Array &q = in["q"], &k = in["k"];
    std::vector<List> drawn(static_cast<size_t>(s.blocks()));
    if (s.random > 0) drawn = table_of(in["blocks"], s, h);
    return bigbird(s, rows_of(q, b, h, q.rows), rows_of(k, b, h, k.rows), drawn);
  });
}

// One batch of rows; returns the error.
double check(const Sizes& s, int64_t d, int64_t e, int64_t n, const std::vector<int32_t>& lengths,
             const std::function<void(Inputs&)>& prepare = nullptr) {
  const int64_t batch = lengths.empty() ? 1 : static_cast<int64_t>(lengths.size());
  const auto block = make_block(ATTN_ENCODER_SELF, false, 2, static_cast<int32_t>(d), static_cast<int32_t>(e));
  const Mechanism mech(plugin(), block, s.settings());
  Inputs in(mech, batch, n, n, 5);
  if (prepare) prepare(in);
  Call call;
  call.q_len = call.k_len = lengths;
  const Scene scene{batch, 2, n, n, e, false, lengths, lengths, {}};
  const Array got = run_whole(in, 0, call);
  const Truth truth = oracle(scene, weights(s)(mech, in, scene, call), elements(in["v"]), guard("none", 0));
  const double error = error_of(got, truth);
  EXPECT_LE(error, kGate) << "block " << s.block << ", length " << s.length << ", n " << n;
  return error;
}

TEST(BigBird, EqualsItsFloat64Form) {
  double worst = check({64, 3, 1024}, 32, 32, 1024, {});
  worst = worse(worst, check({64, 3, 1024}, 24, 40, 700, {700, 64, 65, 1, 0}));
  worst = worse(worst, check({16, 2, 160}, 64, 16, 160, {160, 159, 145, 144, 17}));
  worst = worse(worst, check({7, 4, 77}, 5, 3, 77, {77, 70, 71, 6}));
  worst = worse(worst, check({1, 3, 33}, 16, 48, 33, {33, 32, 2}));
  record_error(worst);
}

TEST(BigBird, WorksWithoutRandomBlocks) {
  check({8, 0, 40}, 16, 16, 40, {40, 39, 33, 8});
  check({8, 0, 128}, 16, 16, 128, {});
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16), Sizes{8, 0, 40}.settings());
  EXPECT_EQ(-1, mech.find("blocks"));
}

TEST(BigBird, SurvivesScoresOf900) {
  check({16, 2, 160}, 32, 32, 160, {160, 90}, [](Inputs& in) {
    for (float& x : in["q"].data()) x *= 100;
  });
}

// The authors' table may name a block of the window, or one twice.
TEST(BigBird, CountsARepeatedBlockOnceOrAsOftenAsItIsNamed) {
  for (const bool repeats : {false, true}) {
    const Sizes s{8, 3, 80, repeats};
    check(s, 16, 16, 80, {80, 60, 20}, [&s](Inputs& in) {
      for (int64_t h = 0; h < 2; ++h) {
        set_row(in["blocks"], s, h, 3, {4, 7, 7});
        set_row(in["blocks"], s, h, 8, {7, 9, 0});
        set_row(in["blocks"], s, h, 1, {5, 5, 5});
      }
    });
  }
}

TEST(BigBird, EqualsTheGoldenCases) {
  for (Golden& g : golden("bigbird")) {
    g.role = ATTN_ENCODER_SELF;
    const Sizes s{g.params["block"], 1, static_cast<int64_t>(g.q.size())};
    std::vector<List> drawn(static_cast<size_t>(s.blocks()));
    for (const auto& [row, list] : g.params["rand"].items()) drawn[std::stoul(row)] = list.get<List>();
    const auto prepare = [&](Inputs& in) {
      for (int64_t i = 1; i < s.blocks() - 1; ++i) set_row(in["blocks"], s, 0, i, drawn[static_cast<size_t>(i)]);
    };
    record_error(check_golden(plugin(), g, s.settings(), weight_in(bigbird(s, g.q, g.k, drawn)),
                              weight_in(bigbird(s, rounded(g.q), rounded(g.k), drawn)), guard("none", 0), {}, prepare));
  }
}

// Blocks of less than a tile, of a tile and of several; rows that end within one; tables that repeat.
TEST(BigBird, ItsGradientEqualsCentralDifferences) {
  double worst = check_gradients(plugin(), Sizes{8, 3, 1024}.settings());
  const auto check = [&worst](const Sizes& s, const std::vector<int32_t>& lengths) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 20, 24), s.settings());
    Inputs in(mech, static_cast<int64_t>(lengths.size()), s.length, s.length, 5);
    if (s.repeats) set_row(in["blocks"], s, 1, 3, {4, 7, 7});
    Call call;
    call.q_len = call.k_len = lengths;
    worst = worse(worst, check_gradients(in, 0, call, false));
  };
  check({7, 4, 77}, {77, 70, 71, 6, 0});
  check({8, 3, 80, true}, {80, 60, 20});
  check({8, 0, 80}, {80, 60, 20});
  check({64, 1, 384}, {384, 300});
  check({100, 0, 500}, {500, 450});
  record_error(worst);
}

TEST(BigBird, AShortRowIsTheSameInEveryPlan) {
  const auto block = make_block(ATTN_ENCODER_SELF, false, 2, 24, 40);
  check_larger_bounds(Mechanism(plugin(), block, Sizes{16, 2, 160}.settings()), 50, 160);
}

TEST(BigBird, DrawsBlocksThatAreNotSeenAnyway) {
  const Sizes s{8, 3, 80};
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16), s.settings());
  std::vector<std::vector<int64_t>> counts(10, std::vector<int64_t>(10));
  const int64_t seeds = 2000;
  for (int64_t seed = 0; seed < seeds; ++seed) {
    Inputs in(mech, 1, 1, 1, static_cast<uint64_t>(seed));
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 1; i < 9; ++i) {
        const List row = table_row(in["blocks"], s, h, i);
        ASSERT_EQ(3u, std::set<int64_t>(row.begin(), row.end()).size()) << "seed " << seed << ": one is there twice";
        for (const int64_t t : row) ++counts[static_cast<size_t>(i)][static_cast<size_t>(t)];
      }
  }
  for (int64_t i = 1; i < 9; ++i) {
    const double free = i == 1 || i == 8 ? 6 : 5;
    for (int64_t t = 0; t < 10; ++t) {
      const auto count = static_cast<double>(counts[static_cast<size_t>(i)][static_cast<size_t>(t)]);
      if (t == 0 || t == 9 || std::abs(t - i) <= 1)
        EXPECT_EQ(0, count) << i << " sees " << t << " anyway";
      else  // six standard deviations of a binomial
        EXPECT_NEAR(2 * seeds * 3 / free, count, 6 * std::sqrt(2 * seeds * 0.25)) << i << " to " << t;
    }
  }
}

TEST(BigBird, FillsTheSameBytesOnEveryMachine) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16));
  const Sizes s{64, 3, 1024};
  Inputs in(mech, 1, 1, 1, 42), other(mech, 1, 1, 1, 43);
  EXPECT_EQ((List{7, 9, 3}), table_row(in["blocks"], s, 0, 1));
  EXPECT_EQ((List{11, 1, 12}), table_row(in["blocks"], s, 1, 14));
  EXPECT_FALSE(same_bits(in["blocks"], other["blocks"]));
}

// Far too slow for a test, should a row of the table cost as much as there are blocks.
TEST(BigBird, FillsATableOfManyBlocks) {
  const Sizes s{1, 3, 1 << 18};
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 1, 16, 16), s.settings());
  Inputs in(mech, 1, 1, 1, 1);
  for (const int64_t i : {int64_t{1}, s.blocks() / 2, s.blocks() - 2}) {
    const List row = table_row(in["blocks"], s, 0, i);
    ASSERT_EQ(3u, std::set<int64_t>(row.begin(), row.end()).size());
    for (const int64_t t : row) EXPECT_TRUE(t > 0 && t < s.blocks() - 1 && std::abs(t - i) > 1) << i << " to " << t;
  }
}

TEST(BigBird, RefusesOptionsThatContradictEachOther) {
  const auto encoder = make_block(ATTN_ENCODER_SELF, false, 2, 16, 16);
  const auto says = [&encoder](const Sizes& s, const char* words, const char* option) {
    expect_refused(plugin(), encoder, s.settings(), words, option);
  };
  says({64, 3, 1000}, "length = 1000 is not a whole number of blocks of 64 tokens: make it a multiple of block",
       "length");
  says({64, 0, 256}, "length = 256 has 4 blocks of 64 tokens and needs 5", "length");
  says({64, 3, 448}, "random = 3 blocks cannot be drawn from the 2 that are left", "random");
  EXPECT_NO_THROW(Mechanism(plugin(), encoder, Sizes{64, 3, 512}.settings()));
}

TEST(BigBird, RefusesWhatIsNoWholeEncoderSequence) {
  const auto says = [](uint32_t role, bool causal, int64_t n, uint32_t flags, const char* words) {
    expect_refused(Mechanism(plugin(), make_block(role, causal, 2, 16, 16)), make_request(1, n, n, flags), words);
  };
  says(ATTN_DECODER_SELF, true, 8, 0, "encoder only: use a mechanism such as");
  says(ATTN_ENCODER_SELF, true, 8, 0, "first and last block");
  says(ATTN_DECODER_SELF, false, 8, 0, "first and last block");
  says(ATTN_DECODER_CROSS, false, 8, 0, "first and last block");
  says(ATTN_DECODER_SELF, true, 8, ATTN_STREAM, "first and last block");
  says(ATTN_ENCODER_SELF, false, 8, ATTN_STREAM, "cannot stream");
  says(ATTN_ENCODER_SELF, false, 8, ATTN_PREFIX, "no prefix form");
  says(ATTN_ENCODER_SELF, false, 1025, 0, "the table of blocks is for 1024 tokens and up to 1025 were asked for");
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16));
  EXPECT_NO_THROW(Planned(mech, make_request(1, 1024, 1024)));
}

TEST(BigBird, RefusesATableOfAnotherModelBeforeItWrites) {
  const Sizes s{8, 3, 80};
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16), s.settings());
  for (const int64_t t : {int64_t{-1}, int64_t{10}, int64_t{1} << 30}) {
    Inputs in(mech, 1, 8, 8, 1);
    set_row(in["blocks"], s, 1, 8, {2, 3, t});
    expect_refused([&] { run_whole(in, 0, {}); },
                   "names block " + std::to_string(t) + " for block 8 of head 1 and there are blocks 0 to 9",
                   mech.find("blocks"), ATTN_INVALID);
  }
}

// Pairs of query and key, counted one by one.
uint64_t pairs_of(const Sizes& s, const Array* table, int64_t h, int64_t n) {
  uint64_t pairs = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = i / s.block;
      const List drawn = table && at > 0 && at < s.blocks() - 1 ? table_row(*table, s, h, at) : List{};
      pairs += static_cast<uint64_t>(times(s, drawn, at, j / s.block));
    }
  return pairs;
}

TEST(BigBird, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t d = 24, e = 40;
  const auto block = make_block(ATTN_ENCODER_SELF, false, 2, d, e);
  for (const Sizes& s : {Sizes{8, 3, 80}, Sizes{8, 0, 80}, Sizes{5, 2, 55, true}}) {
    const Mechanism mech(plugin(), block, s.settings());
    Inputs in(mech, 1, s.length, s.length, 1);
    uint64_t pairs = 0;
    for (int64_t h = 0; h < 2; ++h) pairs += pairs_of(s, s.random > 0 ? &in["blocks"] : nullptr, h, s.length);
    const uint64_t table = s.random > 0 ? bytes_of(in, {"blocks"}) : 0;
    expect_cost(mech, make_request(1, s.length, s.length),
                {pairs * (2 * (d + e) + 5), bytes_of(in, {"q", "k", "v"}) + table, bytes_of(in, {"o"})});
  }
}

TEST(BigBird, DeclaresNothingWhereThereIsNothingToDo) {
  for (const bool repeats : {false, true}) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16),
                         Sizes{8, 3, 80, repeats}.settings());
    expect_cost(mech, make_request(0, 80, 80), {0, 0, 0});
    expect_cost(mech, make_request(1, 0, 80), {0, 0, 0});
    expect_cost(mech, make_request(1, 80, 0), {0, 0, 2 * 80 * 16 * 4});
  }
}

// No plan knows which blocks hold tokens, so a shorter row declares the most: that of a table that draws from
// its tokens alone.
TEST(BigBird, DeclaresTheMostForShorterRows) {
  const Sizes s{8, 2, 160};
  const int64_t d = 24, e = 40;
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 1, d, e), s.settings());
  for (const int64_t n : {96, 100, 1}) {
    Inputs in(mech, 1, n, n, 1);
    for (int64_t i = 1; i < 13; ++i) {
      List free;
      for (int64_t t = 1; t < n / 8 && free.size() < 2; ++t)
        if (std::abs(t - i) > 1) free.push_back(t);
      if (free.size() == 2) set_row(in["blocks"], s, 0, i, free);
    }
    EXPECT_EQ(pairs_of(s, &in["blocks"], 0, n) * (2 * (d + e) + 5), Planned(mech, make_request(1, n, n)).info().flops);
  }
}

// Twice the length is twice the work, apart from the two blocks that see everything.
TEST(BigBird, CostsLinearly) {
  const auto flops = [](int64_t n) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 1, 32, 32), Sizes{64, 3, n}.settings());
    return static_cast<double>(Planned(mech, make_request(1, n, n)).info().flops);
  };
  EXPECT_NEAR(2, flops(1 << 17) / flops(1 << 16), 0.01);
}

}  // namespace
}  // namespace attnkit::test
