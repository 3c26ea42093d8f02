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

TEST(RelativeBias, SurvivesScoresOf900) {
  const auto enlarge = [](Inputs& in) {
    for (float& x : in["q"].data()) x *= 100;
  };
  check_situations(plugin(), {}, weights(32, 128), undivided, enlarge, false, fits);
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

TEST(RelativeBias, StreamsTheSameBitsInAnyChunks) {
  const auto block = make_block(ATTN_DECODER_SELF, true, 2, 24, 40);
  check_any_split(Mechanism(plugin(), block, {{"max_distance", int64_t{40}}}), 90);
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
