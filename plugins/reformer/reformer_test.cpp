// reformer against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include "reference.hpp"
#include "support/cost.hpp"
#include "support/golden.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

// RMS of got - truth over RMS of truth; rows past their length must be zero.
double compare(const Sizes& s, Inputs& in, const Array& got, const std::vector<int32_t>& lengths) {
  Ratio ratio;
  for (int64_t b = 0; b < got.batch; ++b)
    for (int64_t h = 0; h < got.heads; ++h) {
      const int64_t n = lengths.empty() ? got.rows : lengths[static_cast<size_t>(b)];
      const Matrix x = rows_of(in["q"], b, h, n);
      Matrix o;
      if (n > 0)
        o = reformer(s, x, rows_of(in["v"], b, h, n),
                     hashes(x, rotations_of(*in.mech, in["rotations"], h), s.count(n)));
      for (int64_t i = 0; i < got.rows; ++i)
        for (int64_t c = 0; c < got.width; ++c)
          ratio.add(got.at(b, h, i, c), i < n ? o[static_cast<size_t>(i)][static_cast<size_t>(c)] : 0);
    }
  return ratio();
}

double check(const Sizes& s, int64_t d, int64_t e, int64_t n, const std::vector<int32_t>& lengths,
             const std::function<void(Inputs&)>& prepare = nullptr) {
  const Mechanism mech(plugin(), encoder(2, d, e), s.settings());
  Inputs in(mech, lengths.empty() ? 1 : static_cast<int64_t>(lengths.size()), n, n, 5);
  if (prepare) prepare(in);
  Call call;
  call.q_len = call.k_len = lengths;
  const double error = compare(s, in, run_whole(in, 0, call), lengths);
  EXPECT_LE(error, kGate) << "chunk " << s.chunk << ", rounds " << s.rounds << ", length " << s.length << ", n " << n;
  return error;
}

TEST(Reformer, EqualsItsFloat64Form) {
  double worst = check({64}, 32, 32, 512, {});
  worst = worse(worst, check({64}, 24, 40, 300, {300, 129, 128, 65, 64, 63, 1, 0}));
  worst = worse(worst, check({16}, 64, 16, 100, {100, 96, 97, 33, 17, 16}));
  worst = worse(worst, check({5}, 5, 3, 77, {77, 75, 71, 6, 2}));
  record_error(worst);
}

TEST(Reformer, HasGradients) {
  double worst = check_gradients(plugin());
  for (const Sizes& s : {Sizes{2}, {4, 3}, {3, 2, 4, 102}, {8, 1, 6, 0, 0.5}, {64, 2, 0, 128}})
    worst = worse(worst, check_gradients(plugin(), s.settings()));
  record_error(worst);
}

TEST(Reformer, TakesAnyNumberOfRounds) {
  for (const int64_t rounds : {1, 2, 3, 8}) check({8, rounds}, 16, 16, 70, {70, 64, 65, 9});
}

TEST(Reformer, TakesAnyEvenNumberOfBuckets) {
  for (const int64_t buckets : {2, 6, 34, 64}) check({8, 2, buckets}, 16, 16, 70, {70, 64, 65, 9});
}

// The padding of a fixed length changes the number of buckets and which chunk is the last.
TEST(Reformer, PadsToAFixedLength) {
  check({8, 2, 0, 80}, 16, 16, 80, {80, 79, 73, 72, 71, 9, 8, 7, 1, 0});
  check({8, 3, 4, 80}, 16, 16, 80, {80, 79, 73, 72, 71, 9, 8, 7, 1, 0});
  check({8, 2, 0, 8}, 16, 16, 8, {8, 7, 1});
  check({8, 2, 0, 16}, 16, 16, 16, {16, 9, 8, 7, 1});
}

TEST(Reformer, TakesAnEpsilon) { check({8, 2, 0, 0, 0.5}, 16, 16, 40, {40, 8}); }

TEST(Reformer, SurvivesScoresOf900) {
  check({16}, 32, 32, 100, {100, 40}, [](Inputs& in) {
    for (float& x : in["q"].data()) x *= 200;
  });
}

// Many tokens alike, some zero: equal products, equal buckets, and the order of positions decides.
TEST(Reformer, BreaksTiesByTheFirstBucketAndThePosition) {
  check({8}, 16, 16, 70, {70, 41}, [](Inputs& in) {
    in["q"].set([&in, old = in["q"]](int64_t b, int64_t h, int64_t i, int64_t c) {
      return i % 3 == 0 ? 0.0f : old.at(b, h, i % 7, c);
    });
  });
  check({8}, 4, 16, 70, {}, [](Inputs& in) {
    in["q"].set([](int64_t, int64_t, int64_t i, int64_t c) { return static_cast<float>((i * 5 + c * 3) % 4 - 1); });
    for (float& r : in["rotations"].data()) r = r < 0 ? -1.0f : 1.0f;
  });
}

// In f32, or in another order, 1 + 2^-30 is 1 and these tokens would tie.
TEST(Reformer, HashesInDoublePrecision) {
  const Sizes s{2, 1, 4};
  const auto put = [](Inputs& in) {
    in["q"].set([](int64_t, int64_t, int64_t i, int64_t c) {
      const float sign = i % 2 == 0 ? 1.0f : -1.0f;
      return c == 0 ? 1.0f : c == 1 ? sign * 0x1p-30f : c == 2 ? 0.5f * static_cast<float>(i) : 0.0f;
    });
    // Products 1 and 1 +- 2^-30.
    const std::vector<float> r = {1, 1, 0, 1, 0, 0, 0, 0};
    in["rotations"].set([&r](int64_t, int64_t, int64_t i, int64_t) { return r[static_cast<size_t>(i) % r.size()]; });
  };
  check(s, 4, 8, 12, {}, put);
  const Mechanism mech(plugin(), encoder(2, 4, 8), s.settings());
  Inputs in(mech, 1, 12, 12, 5);
  put(in);
  const auto buckets = hashes(rows_of(in["q"], 0, 0, 4), rotations_of(mech, in["rotations"], 0), 4);
  EXPECT_EQ((std::vector<int64_t>{1, 0, 1, 0}), buckets[0]);
}

// The source gives buckets, a plugin takes rotations.  Each token gets a feature of its own, too small to count in any
// score, and rotations that look at nothing else; the mean of squares then runs over more features, which eps makes up
// for.
TEST(Reformer, EqualsTheGoldenCases) {
  for (const Golden& g : golden("reformer")) {
    const Hashes combined = g.params["buckets"];
    const auto n = static_cast<int64_t>(g.q.size()), d = static_cast<int64_t>(g.q[0].size()), wide = d + n;
    Sizes s{g.params["chunk"], static_cast<int64_t>(combined.size())};
    s.eps = g.params["eps"];
    s.buckets = *std::min_element(combined[1].begin(), combined[1].end());  // rounds count on
    ASSERT_EQ(-1e5, g.params["self"].get<double>());
    Hashes buckets = combined;
    for (size_t r = 0; r < buckets.size(); ++r)
      for (int64_t& bucket : buckets[r]) bucket -= static_cast<int64_t>(r) * s.count(n);
    const Matrix exact = reformer(s, g.q, g.v, buckets);
    ASSERT_LE(largest_difference(exact, g.o), 1e-12) << g.name;

    Sizes widened = s;
    widened.eps = s.eps * static_cast<double>(d) / static_cast<double>(wide);
    Settings settings = widened.settings();
    settings["max_length"] = n;
    const Mechanism mech(plugin(), encoder(1, wide, static_cast<int64_t>(g.o[0].size())), settings);
    Inputs in(mech, 1, n, n, 1);
    Matrix marked = g.q;
    for (size_t i = 0; i < marked.size(); ++i) {
      marked[i].resize(static_cast<size_t>(wide));
      marked[i][static_cast<size_t>(d) + i] = 0x1p-60;
    }
    put(marked, in["q"]);
    put(g.v, in["v"]);
    const int64_t half = s.count(n) / 2;
    in["rotations"].set([&](int64_t, int64_t, int64_t i, int64_t) {
      const int64_t k = i % half, r = i / half % s.rounds, f = i / half / s.rounds;
      if (f < d) return 0.0f;
      const int64_t bucket = buckets[static_cast<size_t>(r)][static_cast<size_t>(f - d)];
      return bucket % half != k ? 0.0f : bucket < half ? 1.0f : -1.0f;
    });
    ASSERT_EQ(buckets, hashes(rows_of(in["q"], 0, 0, n), rotations_of(mech, in["rotations"], 0), s.count(n)));
    const double error = compare(widened, in, run_whole(in, 0, {}), {});
    EXPECT_LE(error, kGate) << g.name;
    record_error(error);
  }
}

TEST(Reformer, ARowIsTheSameInEveryPlan) {
  for (const int64_t length : {0, 160}) {
    SCOPED_TRACE(length);
    check_larger_bounds(Mechanism(plugin(), encoder(2, 24, 40), Sizes{16, 2, 0, length}.settings()), 50, 160);
  }
}

TEST(Reformer, FillsTheSameNormalNumbersOnEveryMachine) {
  const Mechanism mech(plugin(), encoder(4, 64, 64));
  Inputs in(mech, 1, 1, 1, 42), other(mech, 1, 1, 1, 43);
  const Array& r = in["rotations"];
  ASSERT_EQ(4 * 64 * 2 * 64, r.rows);
  const Moments of = moments(r);
  EXPECT_NEAR(0, of.mean, 0.03);
  EXPECT_NEAR(1, of.square, 0.04);
  EXPECT_NEAR(3, of.fourth, 0.3);
  EXPECT_EQ(-0x1.5e6p-2f, r.at(0, 0, 0, 0));
  EXPECT_EQ(0x1.a6aa9cp-1f, r.at(0, 0, r.rows - 1, 0));
  EXPECT_FALSE(same_bits(r, other["rotations"]));
}

TEST(Reformer, SharesTheProjectionOfQueriesWithoutItsBias) {
  const Mechanism mech(plugin(), encoder(2, 16, 24));
  EXPECT_EQ(-1, mech.find("k"));
  const attn_port& q = *mech.ports()[static_cast<size_t>(mech.find("q"))];
  EXPECT_EQ(ATTN_QUERY, q.kind);
  EXPECT_EQ(ATTN_NO_BIAS, q.flags);
  EXPECT_EQ(16, q.shape[3]);
}

TEST(Reformer, StoresAsManyDirectionsAsTheLongestRowNeeds) {
  const auto columns = [](const Settings& settings) {
    const Mechanism mech(plugin(), encoder(2, 16, 16), settings);
    return mech.ports()[static_cast<size_t>(mech.find("rotations"))]->shape[3];
  };
  EXPECT_EQ(64, columns({}));
  EXPECT_EQ(16, columns({{"max_length", int64_t{1024}}}));
  EXPECT_EQ(32, columns({{"length", int64_t{2048}}}));
  EXPECT_EQ(16, columns({{"length", int64_t{2048 - 64}}}));
  EXPECT_EQ(5, columns({{"buckets", int64_t{10}}}));
  EXPECT_EQ(1, columns({{"length", int64_t{64}}}));
}

TEST(Reformer, RefusesOptionsThatContradictEachOther) {
  expect_refused(plugin(), encoder(2, 16, 16), {{"length", int64_t{1000}}},
                 "length = 1000 is not a whole number of chunks of 64 tokens: make it a multiple of chunk", "length");
  expect_refused(plugin(), encoder(2, 16, 16), {{"buckets", int64_t{7}}}, "buckets = 7 is odd", "buckets");
}

TEST(Reformer, RefusesWhatIsNoWholeEncoderSequence) {
  const auto says = [](uint32_t role, bool causal, uint32_t flags, const char* words) {
    expect_refused(Mechanism(plugin(), make_block(role, causal, 2, 16, 16)), make_request(1, 8, 8, flags), words);
  };
  says(ATTN_DECODER_SELF, true, 0, "sorts the whole sequence");
  says(ATTN_ENCODER_SELF, true, 0, "sorts the whole sequence");
  says(ATTN_DECODER_SELF, false, 0, "sorts the whole sequence");
  says(ATTN_DECODER_CROSS, false, 0, "its queries are its keys");
  says(ATTN_DECODER_SELF, true, ATTN_STREAM, "sorts the whole sequence");
  says(ATTN_ENCODER_SELF, false, ATTN_STREAM, "cannot stream");
  says(ATTN_ENCODER_SELF, false, ATTN_PREFIX, "no prefix form");
}

TEST(Reformer, RefusesRowsThatAreTooLong) {
  const Mechanism mech(plugin(), encoder(2, 16, 16)), padded(plugin(), encoder(2, 16, 16), {{"length", int64_t{128}}}),
      any(plugin(), encoder(2, 16, 16), {{"buckets", int64_t{16}}});
  expect_refused(mech, make_request(1, 4097, 4097),
                 "there are rotations for rows of 4096 tokens and up to 4097 were asked for: raise the option "
                 "\"max_length\"");
  expect_refused(padded, make_request(1, 129, 129),
                 "every row is padded to 128 tokens and up to 129 were asked for: raise the option \"length\"");
  EXPECT_NO_THROW(Planned(mech, make_request(1, 4096, 4096)));
  EXPECT_NO_THROW(Planned(any, make_request(1, 9999, 9999)));
}

TEST(Reformer, RefusesTwoSequencesBeforeItWrites) {
  const Mechanism mech(plugin(), encoder(2, 16, 16));
  Inputs in(mech, 2, 8, 9, 1), one(mech, 2, 8, 8, 1);
  expect_refused([&] { run_whole(in, 0, {}); }, "a plan for up to 8 queries and 9 keys", -1, ATTN_UNSUPPORTED);
  const Planned plan(mech, make_request(2, 9, 9));
  Call call;
  call.queries = 8;
  call.keys = 9;
  expect_refused([&] { plan.run(in, call); }, "a run has 8 queries and 9 keys", -1, ATTN_INVALID);
  call.keys = 8;
  call.k_len = {8, 5};
  expect_refused([&] { plan.run(one, call); }, "row 1 has 8 queries and 5 keys", -1, ATTN_INVALID);
  call.q_len = {8, 4};
  expect_refused([&] { plan.run(one, call); }, "row 1 has 4 queries and 5 keys", -1, ATTN_INVALID);
  call.q_len = {8, 5};
  EXPECT_NO_THROW(plan.run(one, call));
}

// Multiply-adds and elements counted one by one.
TEST(Reformer, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t d = 24, e = 40;
  for (const Sizes& s : {Sizes{8}, Sizes{8, 3, 6}, Sizes{8, 1, 0, 160}, Sizes{8, 2, 0, 80}})
    for (const int64_t n : {0, 1, 8, 9, 75, 80}) {
      const Mechanism mech(plugin(), encoder(2, d, e), s.settings());
      Inputs in(mech, 1, n, n, 1);
      uint64_t flops = 0, rotations = 0;
      for (int64_t h = 0; h < 2; ++h) {
        const Matrix x = rows_of(in["q"], 0, h, n);
        const auto buckets = hashes(x, rotations_of(mech, in["rotations"], h), s.count(std::max<int64_t>(n, 1)));
        std::vector<int64_t> line(static_cast<size_t>(s.padded(n)));
        std::iota(line.begin(), line.end(), 0);
        if (s.padded(n) > s.chunk) {
          line = line_of(s, n, buckets);
          const auto used = static_cast<uint64_t>(d * s.rounds * s.count(n) / 2);
          flops += 2 * static_cast<uint64_t>(n) * used;
          rotations += used;
        }
        for (size_t at = 0; at < line.size(); ++at)
          for (const int64_t j : seen_from(s, line, static_cast<int64_t>(at)))
            if (line[at] < n && j < n) flops += 2 * (d + e) + 5;
      }
      SCOPED_TRACE("chunk " + std::to_string(s.chunk) + ", length " + std::to_string(s.length) + ", n " +
                   std::to_string(n));
      expect_cost(mech, make_request(1, n, n), {flops, bytes_of(in, {"q", "v"}) + 4 * rotations, bytes_of(in, {"o"})});
    }
}

}  // namespace
}  // namespace attnkit::test
