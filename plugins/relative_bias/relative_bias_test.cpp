// relative_bias against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "reference.hpp"
#include "support/gradient.hpp"
#include "support/stream.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

bool fits(const Situation& s) { return s.block.role != ATTN_DECODER_CROSS; }

WeightOf weights(int64_t buckets, int64_t longest, double scale = 0) {
  return by_head([=](Inputs& in, int64_t b, int64_t h, const std::vector<int64_t>& seen) {
    const attn_block& block = in.mech->block();
    const bool causal = block.causal != 0;
    const auto& table = in[causal ? "causal_table" : "table"].data();
    const Matrix q = rows_of(in["q"], b, h, static_cast<int64_t>(seen.size())), k = rows_of(in["k"], b, h, in.keys);
    Matrix w;
    for (size_t i = 0; i < q.size(); ++i) {
      Row scores;
      for (int64_t j = 0; j < seen[i]; ++j) {
        const int64_t row = bucket(static_cast<int64_t>(i), j, buckets, longest, causal);
        const double factor = scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(q[i].size()));
        scores.push_back(factor * dot(q[i], k[static_cast<size_t>(j)]) +
                         static_cast<double>(table[static_cast<size_t>(row * block.heads + h)]));
      }
      w.push_back(scores.empty() ? Row{} : softmax(scores));
      w.back().resize(k.size());
    }
    return w;
  });
}

TEST(RelativeBias, EqualsItsFloat64Form) {
  record_error(check_situations(plugin(), {}, weights(32, 128), undivided, nullptr, false, fits));
}

TEST(RelativeBias, TakesOtherBucketsAndAScale) {
  for (const auto& [buckets, longest] : {std::array<int64_t, 2>{4, 3}, {8, 12}, {10, 7}, {64, 1000}})
    check_situations(plugin(), {{"buckets", buckets}, {"max_distance", longest}, {"scale", 0.3}},
                     weights(buckets, longest, 0.3), undivided, nullptr, false, fits);
}

TEST(RelativeBias, TakesAScaleThatIsNoFloat) {
  check_situations(plugin(), {{"scale", 1e-50}}, weights(32, 128, 1e-50), undivided, nullptr, false, fits);
}

TEST(RelativeBias, SurvivesScoresOf900) {
  const auto enlarge = [](Inputs& in) {
    for (float& x : in["q"].data()) x *= 100;
  };
  check_situations(plugin(), {}, weights(32, 128), undivided, enlarge, false, fits);
}

// Several blocks of queries and of keys, neither a multiple of them, in rows of unlike lengths, with keys that grow so
// that the max rises from block to block.  Distances end before the first block of keys does, within the row and behind
// it. One worker takes large blocks, five take small ones.
TEST(RelativeBias, ManyBlocksEqualTheFloat64Form) {
  const int64_t n = 600;
  const std::vector<int32_t> lengths = {600, 389};
  for (const bool causal : {false, true})
    for (const int64_t longest : {20, 150, 700}) {
      const Mechanism mech(plugin(), make_block(causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF, causal, 2, 20, 24),
                           {{"max_distance", longest}});
      Inputs in(mech, 2, n, n, 5);
      in["k"].set([&, before = in["k"]](int64_t b, int64_t h, int64_t j, int64_t c) {
        return before.at(b, h, j, c) * static_cast<float>(1 + j / 75);
      });
      Scene scene{2, 2, n, n, 24, causal};
      scene.q_len = scene.k_len = lengths;
      Call call;
      call.q_len = call.k_len = lengths;
      const Truth truth = oracle(scene, weights(32, longest)(mech, in, scene, call), elements(in["v"]), undivided);
      const Array one = run_whole(in, 0, call);
      EXPECT_LE(error_of(one, truth), kGate) << "causal " << causal << ", max_distance " << longest;
      EXPECT_TRUE(same_bits(one, run_whole(in, 0, call, 5)));
    }
}

TEST(RelativeBias, ItsGradientEqualsCentralDifferences) {
  record_error(check_gradients(plugin()));
  check_gradients(plugin(), {{"buckets", int64_t{8}}, {"max_distance", int64_t{12}}, {"scale", 0.3}});
}

// Several tiles of keys and of queries, whose shares of the table add up.
TEST(RelativeBias, GradientsOfManyTilesEqualCentralDifferences) {
  for (const bool causal : {false, true}) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, causal, 2, 20, 24));
    Inputs in(mech, 2, 333, 333, 5);
    Call padded;
    padded.q_len = padded.k_len = {333, 70};
    check_gradients(in, 0, padded, false);
  }
}

// Of T5's own code: the first and the last distance of each bucket of a decoder.
TEST(RelativeBias, BucketsAreThoseOfT5) {
  const std::vector<int64_t> first = {16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
  for (int64_t n = 0; n < 300; ++n) {
    int64_t expected = n;
    if (n >= 16) expected = 15 + std::count_if(first.begin(), first.end(), [n](int64_t f) { return f <= n; });
    EXPECT_EQ(bucket(n, 0, 32, 128, true), expected) << n;
  }
}

// Chunks of 4 rows and more.  Fewer add in another order, the same one however few they are.
TEST(RelativeBias, StreamsTheSameBitsInLongChunks) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 24, 40), {{"max_distance", int64_t{40}}});
  const int64_t n = 600;
  Inputs in(mech, 1, n, n, 1);
  const Array whole = run_whole(in, 0, {}), ones = streamed(in, {chunks_of(n, 1)});
  for (const int64_t chunk : {4, 7, 16, 64, 200, 596})
    for (const uint32_t workers : {1u, 5u})
      EXPECT_TRUE(same_bits(whole, streamed(in, {chunks_of(n, chunk), {}, 0, workers}))) << chunk;
  EXPECT_TRUE(same_bits(ones, streamed(in, {chunks_of(n, 3)})));
  EXPECT_LE(rms_ratio(ones, whole), kGate);
  EXPECT_LE(rms_ratio(streamed(in, {{7, n - 9, 1, 1}}), whole), kGate);
}

// Blocks of one run see the keys that others of them append, and NaN in keys that come later stays there.
TEST(RelativeBias, NaNInLaterKeysStaysThere) {
  const int64_t n = 300, dirty = 290;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 20, 24));
  Inputs in(mech, 1, n, n, 6);
  const Array whole = run_whole(in, 0, {});
  for (const char* name : {"k", "v"})
    in[name].set([&, before = in[name]](int64_t b, int64_t h, int64_t j, int64_t c) {
      return j < dirty ? before.at(b, h, j, c) : NAN;
    });
  const Array got = streamed(in, {{37, n - 37}, {}, 0, 5});
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < dirty; ++i)
      for (int64_t c = 0; c < 24; ++c) ASSERT_EQ(whole.at(0, h, i, c), got.at(0, h, i, c)) << "query " << i;
}

TEST(RelativeBias, RefusesWhatHasNoDistance) {
  const auto refused = [](const attn_block& block, const Settings& settings, const char* why) {
    try {
      const Mechanism mech(plugin(), block, settings);
      const Planned plan(mech, make_request(1, 4, 4));
      ADD_FAILURE() << why;
    } catch (const Refused& e) {
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
  };
  refused(make_block(ATTN_DECODER_CROSS, false, 2, 24, 40), {}, "not related in cross attention");
  refused(make_block(ATTN_ENCODER_SELF, false, 2, 24, 40), {{"buckets", int64_t{7}}}, "must be even");
  refused(make_block(ATTN_ENCODER_SELF, false, 2, 24, 40), {{"max_distance", int64_t{8}}},
          "not more than the 8 distances");
  refused(make_block(ATTN_DECODER_SELF, true, 2, 24, 40), {{"max_distance", int64_t{16}}},
          "not more than the 16 distances");
}

TEST(RelativeBias, CountsItsStateAndWork) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 8, 64, 64));
  const Planned plan(mech, make_request(1, 1, 1, ATTN_STREAM, 4095));
  EXPECT_EQ(8u * 4096 * 128 * 4, plan.info().state_bytes);
  EXPECT_EQ(8u * 4096 * (2 * 128 + 6), plan.info().flops);
  EXPECT_EQ(static_cast<uint32_t>(ATTN_REWINDS), plan.info().flags);
}

}  // namespace
}  // namespace attnkit::test
