// bigbird against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <set>

#include "oracle.hpp"
#include "support/golden.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

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
  const Array& v = in["v"];
  const Truth truth = oracle(
      scene, weights(s)(mech, in, scene, call),
      [&v](int64_t b, int64_t h, int64_t j, int64_t c) { return double{v.at(b, h, j, c)}; }, sum);
  const double error = error_of(got, truth);
  EXPECT_LE(error, kGate) << "block " << s.block << ", length " << s.length << ", n " << n;
  return error;
}

TEST(BigBird, EqualsItsFloat64Form) {
  double worst = check({64, 3, 1024}, 32, 32, 1024, {});
  worst = std::max(worst, check({64, 3, 1024}, 24, 40, 700, {700, 64, 65, 1, 0}));
  worst = std::max(worst, check({16, 2, 160}, 64, 16, 160, {160, 159, 145, 144, 17}));
  worst = std::max(worst, check({7, 4, 77}, 5, 3, 77, {77, 70, 71, 6}));
  worst = std::max(worst, check({1, 3, 33}, 16, 48, 33, {33, 32, 2}));
  RecordProperty("error", std::to_string(1e9 * worst) + "e-9");
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
  for (const Golden& g : golden("bigbird")) {
    Sizes s{g.params["block"], 1, static_cast<int64_t>(g.q.size())};
    std::vector<List> drawn(static_cast<size_t>(s.blocks()));
    for (const auto& [row, list] : g.params["rand"].items()) drawn[std::stoul(row)] = list.get<List>();
    const Scene scene = g.scene();
    const auto truth = [&](const auto& rounded) {
      const auto weight = [&](int64_t, int64_t, int64_t i, int64_t j) {
        const Row &q = g.q[static_cast<size_t>(i)], &k = g.k[static_cast<size_t>(j)];
        double dot = 0;
        for (size_t f = 0; f < q.size(); ++f) dot += rounded(q[f]) * rounded(k[f]);
        const int64_t at = i / s.block;
        return static_cast<double>(times(s, drawn[static_cast<size_t>(at)], at, j / s.block)) *
               std::exp(dot / std::sqrt(static_cast<double>(q.size())));
      };
      return oracle(
          scene, weight,
          [&](int64_t, int64_t, int64_t j, int64_t c) {
            return rounded(g.v[static_cast<size_t>(j)][static_cast<size_t>(c)]);
          },
          sum);
    };
    const Truth exact = truth([](double x) { return x; });
    for (int64_t i = 0; i < scene.queries; ++i)
      for (int64_t c = 0; c < scene.values; ++c)
        ASSERT_NEAR(g.o[static_cast<size_t>(i)][static_cast<size_t>(c)], exact.at(0, 0, i, c), 1e-12) << g.name;

    const auto width = static_cast<int32_t>(g.q[0].size());
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 1, width, static_cast<int32_t>(scene.values)),
                         s.settings());
    Inputs in(mech, 1, scene.queries, scene.keys, 1);
    const auto put = [&in](const char* name, const Matrix& from) {
      in[name].set([&](int64_t, int64_t, int64_t i, int64_t c) {
        return static_cast<float>(from[static_cast<size_t>(i)][static_cast<size_t>(c)]);
      });
    };
    put("q", g.q);
    put("k", g.k);
    put("v", g.v);
    for (int64_t i = 1; i < s.blocks() - 1; ++i) set_row(in["blocks"], s, 0, i, drawn[static_cast<size_t>(i)]);
    const double error = error_of(run_whole(in, 0, {}), truth([](double x) { return double{static_cast<float>(x)}; }));
    EXPECT_LE(error, kGate) << g.name;
    RecordProperty("error", std::to_string(1e9 * error) + "e-9");
  }
}

TEST(BigBird, AShortRowIsTheSameInEveryPlan) {
  const Sizes s{16, 2, 160};
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 24, 40), s.settings());
  Inputs in(mech, 1, 50, 50, 1);
  Call call;
  call.queries = call.keys = 50;
  const Array small = Planned(mech, make_request(1, 50, 50)).run(in, call);
  EXPECT_TRUE(same_bits(small, Planned(mech, make_request(7, 160, 160, 0, 0, 3)).run(in, call)));
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

// The code and the words of a refusal, and the option that it points at.
void expect_refused(const std::function<void()>& act, int32_t code, const std::string& words,
                    const std::string& option = "") {
  try {
    act();
    FAIL() << words;
  } catch (const Refused& refused) {
    EXPECT_EQ(code, refused.code);
    EXPECT_NE(std::string::npos, std::string(refused.what()).find(words)) << refused.what();
    if (!option.empty()) EXPECT_EQ(option, plugin().options[refused.where]->name);
  }
}

TEST(BigBird, RefusesOptionsThatContradictEachOther) {
  const auto encoder = make_block(ATTN_ENCODER_SELF, false, 2, 16, 16);
  const auto make = [&](const Sizes& s) { return [&encoder, s] { Mechanism(plugin(), encoder, s.settings()); }; };
  expect_refused(make({64, 3, 1000}), ATTN_UNSUPPORTED,
                 "length = 1000 is not a whole number of blocks of 64 tokens: make it a multiple of block", "length");
  expect_refused(make({64, 0, 256}), ATTN_UNSUPPORTED, "length = 256 has 4 blocks of 64 tokens and needs 5", "length");
  expect_refused(make({64, 3, 448}), ATTN_UNSUPPORTED, "random = 3 blocks cannot be drawn from the 2 that are left",
                 "random");
  Mechanism(plugin(), encoder, Sizes{64, 3, 512}.settings());
}

TEST(BigBird, RefusesWhatIsNoWholeEncoderSequence) {
  const auto plan = [](uint32_t role, bool causal, int64_t n, uint32_t flags) {
    return [=] { Planned(Mechanism(plugin(), make_block(role, causal, 2, 16, 16)), make_request(1, n, n, flags)); };
  };
  expect_refused(plan(ATTN_DECODER_SELF, true, 8, 0), ATTN_UNSUPPORTED, "encoder only: use a mechanism such as");
  expect_refused(plan(ATTN_ENCODER_SELF, true, 8, 0), ATTN_UNSUPPORTED, "first and last block");
  expect_refused(plan(ATTN_DECODER_SELF, false, 8, 0), ATTN_UNSUPPORTED, "first and last block");
  expect_refused(plan(ATTN_DECODER_CROSS, false, 8, 0), ATTN_UNSUPPORTED, "first and last block");
  expect_refused(plan(ATTN_DECODER_SELF, true, 8, ATTN_STREAM), ATTN_UNSUPPORTED, "first and last block");
  expect_refused(plan(ATTN_ENCODER_SELF, false, 8, ATTN_STREAM), ATTN_UNSUPPORTED, "cannot stream");
  expect_refused(plan(ATTN_ENCODER_SELF, false, 8, ATTN_PREFIX), ATTN_UNSUPPORTED, "no prefix form");
  expect_refused(plan(ATTN_ENCODER_SELF, false, 1025, 0), ATTN_UNSUPPORTED,
                 "the table of blocks is for 1024 tokens and up to 1025 were asked for");
  plan(ATTN_ENCODER_SELF, false, 1024, 0)();
}

TEST(BigBird, RefusesATableOfAnotherModelBeforeItWrites) {
  const Sizes s{8, 3, 80};
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16), s.settings());
  for (const int64_t t : {int64_t{-1}, int64_t{10}, int64_t{1} << 30}) {
    Inputs in(mech, 1, 8, 8, 1);
    set_row(in["blocks"], s, 1, 8, {2, 3, t});
    expect_refused([&] { run_whole(in, 0, {}); }, ATTN_INVALID,
                   "names block " + std::to_string(t) + " for block 8 of head 1 and there are blocks 0 to 9");
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
    const attn_info info = Planned(mech, make_request(1, s.length, s.length)).info();
    uint64_t pairs = 0;
    for (int64_t h = 0; h < 2; ++h) pairs += pairs_of(s, s.random > 0 ? &in["blocks"] : nullptr, h, s.length);
    EXPECT_EQ(pairs * (2 * (d + e) + 5), info.flops);
    const auto floats = static_cast<uint64_t>(2 * s.length * (2 * d + e) + 2 * (s.blocks() - 2) * s.random);
    EXPECT_EQ(4 * floats, info.bytes_read);
    EXPECT_EQ(static_cast<uint64_t>(4 * 2 * s.length * e), info.bytes_written);
    EXPECT_EQ(0u, info.state_bytes);
  }
}

// Which blocks hold tokens is known to no plan, so a shorter row declares the most: that of a table that draws from
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
