// softmax against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>

#include "reference.hpp"
#include "support/golden.hpp"
#include "support/gradient.hpp"
#include "support/rounded.hpp"
#include "support/stream.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

// scale 0 means D^-1/2.
WeightOf weights(double given) {
  return [given](const Mechanism&, Inputs& in, const Scene& scene, const Call&) -> Weight {
    const Array &q = in["q"], &k = in["k"];
    const double scale = given != 0 ? given : 1 / std::sqrt(static_cast<double>(q.width));
    // The oracle asks row by row, so the max of the last row is worth keeping.
    auto row = std::make_shared<std::pair<std::array<int64_t, 3>, double>>(std::array<int64_t, 3>{-1, -1, -1}, 0.0);
    return [&q, &k, scene, scale, row](int64_t b, int64_t h, int64_t i, int64_t j) {
      const Row query = row_of(q, b, h, i);
      if (row->first != std::array<int64_t, 3>{b, h, i}) {
        *row = {{b, h, i}, -INFINITY};
        for (int64_t t = 0; t < scene.keys; ++t)
          if (scene.sees(b, i, t)) row->second = std::max(row->second, scale * dot(query, row_of(k, b, h, t)));
      }
      return weight(query, row_of(k, b, h, j), scale, row->second);
    };
  };
}

TEST(Softmax, EqualsItsFloat64Form) {
  RecordProperty("error", std::to_string(1e9 * check_situations(plugin(), {}, weights(0), guard("none", 0))) + "e-9");
}

TEST(Softmax, TakesAScale) { check_situations(plugin(), {{"scale", 0.3}}, weights(0.3), guard("none", 0)); }

TEST(Softmax, TakesAScaleThatIsNoFloat) {
  check_situations(plugin(), {{"scale", 1e-50}}, weights(1e-50), guard("none", 0));
}

TEST(Softmax, SurvivesScoresOf900) {
  check_situations(plugin(), {}, weights(0), guard("none", 0), [](Inputs& in) {
    for (float& x : in["q"].data()) x *= 100;
  });
}

TEST(Softmax, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("softmax")) {
    const double scale = g.params["scale"];
    const auto of_rows = [scale](const Row& q, const Row& k, int64_t, int64_t) { return weight(q, k, scale); };
    worst = std::max(worst, check_golden(plugin(), g, {{"scale", scale}}, of_rows, of_rows, guard("none", 0), {}));
  }
  RecordProperty("error", std::to_string(1e9 * worst) + "e-9");
}

// Several blocks of queries and of keys, neither a multiple of them, with keys that grow so that the max rises from
// block to block.  One worker takes large blocks, five take small ones.
TEST(Softmax, ManyBlocksEqualTheFloat64Form) {
  const int64_t n = 600, m = 421;
  for (const bool causal : {false, true}) {
    const Mechanism mech(plugin(), make_block(causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, causal, 4, 20, 24));
    const int64_t keys = causal ? n : m;
    Inputs in(mech, 1, n, keys, 5);
    in["k"].set([&, before = in["k"]](int64_t b, int64_t h, int64_t j, int64_t c) {
      return before.at(b, h, j, c) * static_cast<float>(1 + j / 75);
    });
    const Scene scene{1, 4, n, keys, 24, causal};
    const Truth truth = oracle(
        scene, weights(0)(mech, in, scene, {}),
        [&](int64_t b, int64_t h, int64_t j, int64_t c) { return double{in["v"].at(b, h, j, c)}; }, guard("none", 0));
    const Array one = run_whole(in, 0, {});
    EXPECT_LE(error_of(one, truth), kGate) << "causal " << causal;
    EXPECT_TRUE(same_bits(one, run_whole(in, 0, {}, 5)));
  }
}

// Blocks of one run see the keys that others of them append, and NaN in keys that come later stays there.
TEST(Softmax, LongChunksEqualTheWhole) {
  const int64_t n = 300, first = 37, dirty = 290;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 20, 24));
  Inputs in(mech, 1, n, n, 6);
  const Array whole = run_whole(in, 0, {});
  for (const char* name : {"k", "v"})
    in[name].set([&, before = in[name]](int64_t b, int64_t h, int64_t j, int64_t c) {
      return j < dirty ? before.at(b, h, j, c) : NAN;
    });
  const Planned plan(mech, make_request(1, n, n, ATTN_STREAM, n, 5));
  const Arena arena(plan.info().state_bytes, 1);
  for (const auto& [from, count] : {std::pair{int64_t{0}, first}, std::pair{first, n - first}}) {
    Call call;
    call.q_from = call.k_from = from;
    call.queries = call.keys = count;
    call.q_pos = call.k_pos = {static_cast<int32_t>(from)};
    call.arena = &arena;
    call.workers = 5;
    const Array got = plan.run(in, call);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < count && from + i < dirty; ++i)
        for (int64_t c = 0; c < 24; ++c)
          ASSERT_EQ(whole.at(0, h, from + i, c), got.at(0, h, i, c)) << "query " << from + i;
  }
}

// Caches that together are too large to stay near the processor are read in another order, for the same bits.
TEST(Softmax, ManyCachesEqualEachAlone) {
  const int64_t rows = 16, n = 330, heads = 4, d = 20, e = 24;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, heads, d, e));
  const auto last = [&](Inputs& in, int64_t batch) {
    const Planned plan(mech, make_request(batch, n, n, ATTN_STREAM, n));
    const Arena arena(plan.info().state_bytes, batch);
    Array got;
    for (const int64_t from : {int64_t{0}, n - 1}) {
      Call call;
      call.q_from = call.k_from = from;
      call.queries = call.keys = from == 0 ? n - 1 : 1;
      call.q_pos = call.k_pos = std::vector<int32_t>(static_cast<size_t>(batch), static_cast<int32_t>(from));
      call.arena = &arena;
      got = plan.run(in, call);
    }
    return got;
  };
  Inputs in(mech, rows, n, n, 7), one(mech, 1, n, n, 7);
  const Array all = last(in, rows);
  for (const int64_t row : {int64_t{0}, rows - 1}) {
    for (const char* name : {"q", "k", "v"})
      one[name].set([&](int64_t, int64_t h, int64_t j, int64_t c) { return in[name].at(row, h, j, c); });
    const Array alone = last(one, 1);
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t c = 0; c < e; ++c) ASSERT_EQ(alone.at(0, h, 0, c), all.at(row, h, 0, c)) << row << " " << h;
  }
}

// Its keys and values are rounded, whole and in streams; the state takes that much less.
TEST(Softmax, ARoundedCacheIsSoftmaxOfRoundedKeysAndValues) {
  const int64_t n = 200, heads = 2, d = 20, e = 24;
  const auto floats = std::map<std::string, int64_t>{{"f32", d + e}, {"bf16", (d + e) / 2}, {"int8", 2 + (d + e) / 4}};
  for (const std::string type : {"bf16", "int8"})
    for (const bool causal : {false, true}) {
      const Mechanism mech(plugin(), make_block(causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, causal, heads, d, e),
                           {{"cache", type}});
      const Refused refused = refusal(mech, make_request(1, n, n));
      if (refused.code != ATTN_OK) {  // the variant of a device
        EXPECT_NE(std::string(refused.what()).find("only the CPU rounds keys"), std::string::npos) << refused.what();
        continue;
      }
      Inputs in(mech, 1, n, n, 5), seen = in;
      round_rows(seen["k"], type);
      round_rows(seen["v"], type);
      const Scene scene{1, heads, n, n, e, causal};
      const Truth truth = oracle(
          scene, weights(0)(mech, seen, scene, {}),
          [&](int64_t b, int64_t h, int64_t j, int64_t c) { return double{seen["v"].at(b, h, j, c)}; },
          guard("none", 0));
      const Array whole = run_whole(in, 0, {});
      EXPECT_LE(error_of(whole, truth), kGate) << type << ", causal " << causal;
      for (const int64_t chunk : {1, 7, 150})
        if (causal) EXPECT_LE(rms_ratio(streamed(in, {chunks_of(n, chunk), {}, 0, 2}), whole), kGate) << type << chunk;
      if (type == "bf16") EXPECT_TRUE(same_bits(whole, run_whole(seen, 0, {}))) << "rounded twice";
      const Planned plan(mech, make_request(1, 1, 1, ATTN_STREAM, n - 1));
      const uint64_t kept = static_cast<uint64_t>(n * heads * floats.at(type)) * sizeof(float);
      EXPECT_LE(plan.info().state_bytes, kept + ATTN_ALIGN);
    }
}

TEST(Softmax, ItsGradientEqualsCentralDifferences) {
  record_error(check_gradients(plugin()));
  check_gradients(plugin(), {{"scale", 0.3}});
}

// Several tiles, the last of them partly filled, of what is seen whole, in part and not at all.
TEST(Softmax, GradientsOfManyTilesEqualCentralDifferences) {
  const auto check = [](uint32_t role, bool causal, int64_t n, int64_t m, const Call& call,
                        const Settings& settings = {}) {
    const Mechanism mech(plugin(), make_block(role, causal, 2, 20, 24), settings);
    Inputs in(mech, 1, n, m, 5);
    check_gradients(in, call.visible.empty() ? 0 : ATTN_PREFIX, call, false);
  };
  Call waiting;  // the first 10 queries see nothing, the next ones what is not whole tiles
  for (int i = 0; i < 150; ++i) waiting.visible.push_back(std::max(0, i - 10) / 7 * 9);
  check(ATTN_DECODER_SELF, true, 150, 150, {});
  check(ATTN_DECODER_CROSS, false, 150, 170, {}, {{"scale", 0.3}});
  check(ATTN_DECODER_CROSS, false, 150, 170, waiting);
}

TEST(Softmax, CountsItsStateAndWork) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 8, 64, 64));
  const Planned plan(mech, make_request(1, 1, 1, ATTN_STREAM, 4095));
  EXPECT_EQ(8u * 4096 * 128 * 4, plan.info().state_bytes);
  EXPECT_EQ(8u * 4096 * (2 * 128 + 5), plan.info().flops);
  EXPECT_EQ(static_cast<uint32_t>(ATTN_REWINDS), plan.info().flags);
}

TEST(Softmax, SharesTheQueriesOfOneHead) {
  for (const bool causal : {true, false}) {
    const attn_block block = make_block(causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF, causal, 1, 64, 40);
    EXPECT_EQ(std::vector<int64_t>{8}, check_pieces(Mechanism(plugin(), block, {}), 512));
  }
}

TEST(Softmax, SharesHeadsOfKeys) { check_shared_keys(plugin()); }

}  // namespace
}  // namespace attnkit::test
