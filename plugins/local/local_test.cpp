// local against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "reference.hpp"
#include "support/gradient.hpp"
#include "support/rounded.hpp"
#include "support/stream.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

double error_against_form(Inputs& in, const Scene& scene, const Array& got, int64_t w, double scale) {
  const WeightOf weights = by_head([&](Inputs& all, int64_t b, int64_t h, const std::vector<int64_t>& seen) {
    return local(rows_of(all["q"], b, h, scene.queries), rows_of(all["k"], b, h, scene.keys), seen, scene.causal, w,
                 scale);
  });
  return error_of(got, oracle(scene, weights(*in.mech, in, scene, {}), elements(in["v"]), undivided));
}

// Every situation of self attention; returns the largest error.
double check(int64_t w, double scale = 0, float factor = 1) {
  return worst_situation([](const Situation& s) { return s.block.role != ATTN_DECODER_CROSS; },
                         [&](const Situation& s) {
                           const Mechanism mech(plugin(), s.block, {{"window", w}, {"scale", scale}});
                           Inputs in(mech, s.batch, s.queries, s.keys, 3);
                           for (float& x : in["q"].data()) x *= factor;
                           const Array got = run_whole(in, 0, s.call());
                           Inputs repeated = with_repeated_keys(in);
                           const double error = error_against_form(repeated, s.scene(), got, w, scale);
                           EXPECT_LE(error, kGate) << "window " << w;
                           return error;
                         });
}

TEST(Local, EqualsItsFloat64Form) {
  double worst = 0;
  for (const int64_t w : {1, 2, 3, 4, 5, 16, 33, 64, 128, 1000}) worst = worse(worst, check(w));
  record_error(worst);
}

TEST(Local, TakesAScale) { check(16, 0.3); }

TEST(Local, TakesAScaleThatIsNoFloat) { check(16, 1e-50); }

TEST(Local, SurvivesScoresOf900) { check(24, 0, 100); }

TEST(Local, ARoundedCacheIsAWindowOfRoundedKeysAndValues) {
  const int64_t n = 100, w = 16;
  for (const std::string type : {"bf16", "int8"})
    for (const bool causal : {false, true}) {
      const Mechanism mech(plugin(), make_block(causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF, causal, 2, 20, 24),
                           {{"cache", type}, {"window", w}});
      Inputs in(mech, 1, n, n, 5), seen = in;
      round_rows(seen["k"], type);
      round_rows(seen["v"], type);
      const Array whole = run_whole(in, 0, {});
      EXPECT_LE(error_against_form(seen, Scene{1, 2, n, n, 24, causal}, whole, w, 0), kGate) << type << causal;
      if (!causal) continue;
      for (const int64_t chunk : {1, 7, 40})
        EXPECT_TRUE(same_bits(whole, streamed(in, {chunks_of(n, chunk), {}, 0, 1}))) << type << " by " << chunk;
    }
}

TEST(Local, ItsGradientEqualsCentralDifferences) {
  double worst = 0;
  for (const int64_t w : {1, 2, 5, 16, 1000}) worst = worse(worst, check_gradients(plugin(), {{"window", w}}));
  record_error(worst);
  check_gradients(plugin(), {{"window", int64_t{16}}, {"scale", 0.3}});
}

// Several tiles; a window narrower than one, one as wide, and one of several.
TEST(Local, GradientsOfManyTilesEqualCentralDifferences) {
  for (const int64_t w : {9, 128, 300})
    for (const bool causal : {false, true}) {
      const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, causal, 2, 20, 24), {{"window", w}});
      Inputs in(mech, 1, 333, 333, 5);
      check_gradients(in, 0, {}, false);
      Call waiting;
      for (int i = 0; i < 333; ++i) waiting.visible.push_back(std::max(0, i - 10) / 7 * 6);
      if (!causal) check_gradients(in, ATTN_PREFIX, waiting, false);
    }
}

// An even and the odd window below it are one when both sides count, as |i - j| < w / 2 says.
TEST(Local, EvenWindowsHaveOneKeyLess) {
  const auto encoder = make_block(ATTN_ENCODER_SELF, false, 2, 24, 40);
  const Mechanism even(plugin(), encoder, {{"window", int64_t{8}}}), odd(plugin(), encoder, {{"window", int64_t{7}}});
  Inputs a(even, 1, 30, 30, 1), b(odd, 1, 30, 30, 1);
  EXPECT_TRUE(same_bits(run_whole(a, 0, {}), run_whole(b, 0, {})));
}

TEST(Local, AWindowOfOneIsTheValueItself) {
  for (const bool causal : {false, true}) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, causal, 2, 24, 40), {{"window", int64_t{1}}});
    Inputs in(mech, 2, 30, 30, 1);
    EXPECT_TRUE(same_bits(run_whole(in, 0, {}), in["v"]));
  }
}

TEST(Local, PrefixesCutTheWindow) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 24, 40), {{"window", int64_t{9}}});
  Inputs in(mech, 1, 30, 30, 1);
  Call call;
  for (int i = 0; i < 30; ++i) call.visible.push_back(i / 5 * 4);  // later queries are past all they may see
  const Scene scene{1, 2, 30, 30, 40, false, {}, {}, call.visible};
  const Array got = run_whole(in, ATTN_PREFIX, call);
  EXPECT_LE(error_against_form(in, scene, got, 9, 0), kGate);
  EXPECT_EQ(0.0f, got.at(0, 1, 29, 3)) << "keys 25 to 33 are near, keys 0 to 19 visible";
}

TEST(Local, NothingReachesBeyondTheWindow) {
  for (const bool causal : {false, true})
    for (const int64_t w : {4, 7, 16}) {
      const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, causal, 1, 24, 40), {{"window", w}});
      Inputs in(mech, 1, 80, 80, 1), spoilt = in;
      for (const char* name : {"k", "v"}) spoilt[name].at(0, 0, 40, 0) = std::numeric_limits<float>::quiet_NaN();
      const Array clean = run_whole(in, 0, {}), got = run_whole(spoilt, 0, {});
      for (int64_t i = 0; i < 80; ++i) {
        EXPECT_EQ(near(causal, w, i, 40), std::isnan(got.at(0, 0, i, 0))) << i;
        EXPECT_TRUE(near(causal, w, i, 40) || got.at(0, 0, i, 7) == clean.at(0, 0, i, 7)) << i;
      }
    }
}

Call at(int32_t from, int64_t count, const Arena& arena) {
  Call call;
  call.arena = &arena;
  call.q_from = call.k_from = from;
  call.queries = call.keys = count;
  call.q_pos = call.k_pos = {from};
  return call;
}

const attn_block kDecoder = make_block(ATTN_DECODER_SELF, true, 2, 24, 40);

// Chunks shorter than the window, as long, longer, and far longer than it: equal bits.
TEST(Local, StreamsTheSameBitsInAnyChunks) {
  for (const int64_t w : {1, 5, 16, 33, 149, 400}) check_any_split(Mechanism(plugin(), kDecoder, {{"window", w}}), 150);
}

// Keys may come without queries, and queries for the last key without keys.
TEST(Local, AppendsAndReadsApart) {
  const Mechanism mech(plugin(), kDecoder, {{"window", int64_t{6}}});
  Inputs in(mech, 1, 20, 20, 1);
  const Planned plan(mech, make_request(1, 20, 20, ATTN_STREAM, 0));
  const Arena arena(plan.info().state_bytes, 1), together(plan.info().state_bytes, 1);
  Call call = at(0, 14, together);
  plan.run(in, call);
  const Array want = plan.run(in, at(14, 1, together));
  call = at(0, 15, arena);
  call.queries = 0;
  plan.run(in, call);
  call = at(14, 1, arena);
  call.keys = 0;
  call.k_pos = {15};
  const Array got = plan.run(in, call);
  for (int64_t c = 0; c < 40; ++c) EXPECT_EQ(want.at(0, 1, 0, c), got.at(0, 1, 0, c));
}

TEST(Local, ItsStateIsARingThatCapacityCutsShort) {
  const Mechanism mech(plugin(), kDecoder, {{"window", int64_t{16}}});
  const auto bytes = [&mech](int64_t capacity) {
    return Planned(mech, make_request(1, 1, 1, ATTN_STREAM, capacity - 1)).info().state_bytes;
  };
  EXPECT_EQ(10u * 2 * 64 * 4, bytes(10));
  EXPECT_EQ(16u * 2 * 64 * 4, bytes(16));
  EXPECT_EQ(bytes(16), bytes(17));
  EXPECT_EQ(bytes(16), bytes(1 << 20));
  Inputs in(mech, 1, 40, 40, 1);
  const Planned small(mech, make_request(1, 10, 10, ATTN_STREAM, 0)), large(mech, make_request(1, 40, 40, ATTN_STREAM));
  const Arena little(small.info().state_bytes, 1), grown(large.info().state_bytes, 1), big(large.info().state_bytes, 1);
  small.run(in, at(0, 10, little));
  large.run(in, at(0, 10, big));
  ASSERT_EQ(0, std::memcmp(little.row(0), big.row(0), little.row_bytes));
  std::memcpy(grown.row(0), little.row(0), little.row_bytes);
  EXPECT_TRUE(same_bits(large.run(in, at(10, 30, grown)), large.run(in, at(10, 30, big))));
}

// While nothing is overwritten a smaller position undoes what came after it; once the ring is full it cannot.
TEST(Local, RewindsWhileTheCapacityIsWithinTheWindow) {
  const Mechanism mech(plugin(), kDecoder, {{"window", int64_t{16}}});
  Inputs in(mech, 1, 40, 40, 1), other(mech, 1, 40, 40, 2);
  for (const int64_t capacity : {1, 16, 17, 40}) {
    const Planned plan(mech, make_request(1, capacity, capacity, ATTN_STREAM));
    EXPECT_EQ(capacity <= 16, (plan.info().flags & ATTN_REWINDS) != 0) << capacity;
    if (capacity < 16) continue;
    const Arena arena(plan.info().state_bytes, 1), straight(plan.info().state_bytes, 1);
    plan.run(in, at(0, 8, straight));
    const Array want = plan.run(in, at(8, 1, straight));
    plan.run(in, at(0, 8, arena));
    plan.run(other, at(8, capacity - 8, arena));
    const Array got = plan.run(in, at(8, 1, arena));
    EXPECT_EQ(capacity <= 16, got.at(0, 0, 0, 0) == want.at(0, 0, 0, 0)) << capacity;
  }
}

TEST(Local, RefusesCrossAttentionAndWindowsOfNothing) {
  const auto cross = make_block(ATTN_DECODER_CROSS, false, 2, 24, 24);
  const Mechanism mech(plugin(), cross);
  for (const uint32_t flags : {0u, ATTN_STREAM, ATTN_PREFIX}) {
    try {
      Planned(mech, make_request(1, 4, 4, flags));
      FAIL();
    } catch (const Refused& refused) {
      EXPECT_EQ(ATTN_UNSUPPORTED, refused.code);
      EXPECT_NE(std::string::npos, std::string(refused.what()).find("are not related in cross attention"));
    }
  }
  const attn_option& window = *plugin().options[0];
  EXPECT_STREQ("window", window.name);
  EXPECT_EQ(1, window.min) << "the host refuses 0 and less";
}

// Pairs, multiply-adds and elements counted one by one, the way the equation is written.
TEST(Local, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 2, d = 24, e = 40;
  struct Case {
    bool causal;
    int64_t w, n, m, past;
  };
  for (const Case& c :
       {Case{false, 5, 30, 30, 0}, Case{false, 8, 30, 30, 0}, Case{false, 100, 30, 30, 0}, Case{false, 7, 30, 9, 0},
        Case{true, 5, 30, 30, 0}, Case{true, 100, 30, 30, 0}, Case{true, 5, 1, 1, 50}, Case{true, 16, 10, 10, 3},
        Case{true, 16, 4, 9, 40}, Case{true, 5, 0, 9, 40}, Case{true, 9, 1, 0, 40}}) {
    const int64_t all = c.past + c.m, first = c.causal ? all - c.n : 0;
    uint64_t work = 0;
    std::vector<bool> read(static_cast<size_t>(all));
    for (int64_t i = first; i < first + c.n; ++i)
      for (int64_t j = 0; j < all; ++j)
        if (near(c.causal, c.w, i, j)) {
          work += static_cast<uint64_t>(2 * d + 2 * e + 5);  // the score, the mean; scale, max, minus, exp, sum
          read[static_cast<size_t>(j)] = true;
        }
    uint64_t from_state = 0;
    for (int64_t j = 0; j < c.past; ++j) from_state += read[static_cast<size_t>(j)];
    const uint32_t flags = c.past > 0 ? ATTN_STREAM : 0;
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, c.causal, heads, d, e), {{"window", c.w}});
    const attn_info info = Planned(mech, make_request(3, c.n, c.m, flags, c.past)).info();
    const auto both = static_cast<uint64_t>(d + e), n = static_cast<uint64_t>(c.n), m = static_cast<uint64_t>(c.m);
    const uint64_t kept = flags ? std::min(m, static_cast<uint64_t>(c.w)) : 0;
    EXPECT_EQ(6 * work, info.flops) << c.w << " " << c.n << " " << c.m << " " << c.past;
    EXPECT_EQ(6 * 4 * (n * d + (m + from_state) * both), info.bytes_read) << c.w << " " << c.n << " " << c.past;
    EXPECT_EQ(6 * 4 * (n * e + kept * both), info.bytes_written) << c.w << " " << c.n << " " << c.past;
  }
}

TEST(Local, SharesHeadsOfKeys) { check_shared_keys(plugin(), {{"window", int64_t{16}}}); }

}  // namespace
}  // namespace attnkit::test
