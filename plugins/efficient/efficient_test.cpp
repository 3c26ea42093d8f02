// efficient against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "reference.hpp"
#include "support/cost.hpp"
#include "support/golden.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"
#include "support/stream.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

bool bidirectional(const Situation& s) { return !s.block.causal; }

Weight weights(const Mechanism&, Inputs& in, const Scene& scene, const Call&) {
  const Array &q = in["q"], &k = in["k"];
  const auto known = std::make_shared<std::map<std::array<int64_t, 3>, Row>>();  // sums by row, head and keys seen
  return [&q, &k, scene, known](int64_t b, int64_t h, int64_t i, int64_t j) {
    int64_t count = 0;
    for (int64_t t = 0; t < scene.keys; ++t) count += scene.sees(b, i, t);
    Row& sums = (*known)[{b, h, count}];
    if (sums.empty()) sums = column_sums(rows_of(k, b, h, count));
    return weight(row_of(q, b, h, i), row_of(k, b, h, j), sums);
  };
}

RowWeight golden_weight(const Golden& g, bool rounds) {
  return [sums = column_sums(rounds ? rounded(g.k) : g.k)](const Row& q, const Row& k, int64_t, int64_t) {
    return weight(q, k, sums);
  };
}

double check(float factor) {
  const auto enlarge = [factor](Inputs& in) {
    for (const char* name : {"q", "k"})
      for (float& x : in[name].data()) x *= factor;
  };
  return check_situations(plugin(), {}, weights, undivided, enlarge, false, bidirectional);
}

TEST(Efficient, EqualsItsFloat64Form) { record_error(check(1)); }

TEST(Efficient, EqualsItsFloat64FormWhereExponentialsWouldOverflow) { record_error(check(50)); }

TEST(Efficient, SharesHeadsOfKeys) { check_shared_keys(plugin(), {}, false); }

// Latte's bidirectional form is this one, with latents for features.
TEST(Efficient, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("efficient"))
    worst =
        std::max(worst, check_golden(plugin(), g, {}, golden_weight(g, false), golden_weight(g, true), undivided, {}));
  record_error(worst);
}

TEST(Efficient, HasGradients) { record_error(check_gradients(plugin(), {}, {.allowed = bidirectional})); }

TEST(Efficient, HasGradientsWhereExponentialsWouldOverflow) {
  const auto enlarge = [](Inputs& in) {
    for (const char* name : {"q", "k"})
      for (float& x : in[name].data()) x *= 50;
  };
  check_gradients(plugin(), {}, {enlarge, bidirectional});
}

// Several tiles of the gradient, and more than it keeps the sums of; queries that see no more than those before, one
// key more or a hundred.
TEST(Efficient, HasGradientsOfLongSequences) {
  const Mechanism encoder(plugin(), make_block(ATTN_ENCODER_SELF, false, 1, 8, 8)),
      cross(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 8, 8));
  Inputs whole(encoder, 1, 2100, 2100, 1);
  record_error(check_gradients(whole, 0, {}, false));
  const int n = 40000;
  Inputs prefixes(cross, 1, n, n, 1);
  Call call;
  for (int i = 0; i < n; ++i) call.visible.push_back(std::max(0, i % 1000 < 700 ? i - 40 : i / 100 * 100));
  record_error(check_gradients(prefixes, ATTN_PREFIX, call, false));
}

// Ever larger keys change the scale of everything that was summed; ever smaller ones never do.
TEST(Efficient, AppendsKeysThatOutgrowTheScale) {
  const int64_t n = 6, m = 48;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 40));
  for (const float slope : {0.5f, -0.5f, 4.0f, 200.0f}) {
    Inputs in(mech, 1, n, m, 1);
    Array& k = in["k"];
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t f = 0; f < 24; ++f) k.at(0, h, j, f) += slope * static_cast<float>(j);
    const Array whole = run_whole(in, 0, {});
    EXPECT_TRUE(all_finite(whole));
    EXPECT_LE(rms_ratio(streamed(in, {chunks_of(m, 1)}), whole), kGate) << slope;
    EXPECT_LE(rms_ratio(streamed(in, {{17, 0, 31}}), whole), kGate) << slope;
    EXPECT_LE(rms_ratio(streamed(in, {{48}}), whole), kGate) << slope;
  }
}

TEST(Efficient, IsTheSameBitForBitAppendedInOnePiece) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 40));
  Inputs in(mech, 1, 6, 48, 1);
  EXPECT_TRUE(same_bits(streamed(in, {{48}}), run_whole(in, 0, {})));
}

TEST(Efficient, AppendsAfterKeysOfMinusInfinity) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 8, 8));
  Inputs in(mech, 1, 4, 10, 1);
  for (int64_t j = 0; j < 5; ++j) in["k"].at(0, 0, j, 2) = -std::numeric_limits<float>::infinity();
  const Array whole = run_whole(in, 0, {});
  EXPECT_TRUE(all_finite(whole));
  EXPECT_LE(rms_ratio(streamed(in, {{3, 7}}), whole), kGate);
  EXPECT_TRUE(std::isnan(streamed(in, {{3}}).at(0, 0, 0, 0))) << "a softmax over nothing";
}

TEST(Efficient, ShiftsOfAQueryOrOfAFeatureDoNotMatter) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16));
  Inputs in(mech, 1, 20, 20, 1), shifted = in;
  for (float& x : shifted["q"].data()) x += 64;
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t j = 0; j < 20; ++j) shifted["k"].at(0, h, j, 3) -= 64;
  EXPECT_LE(rms_ratio(run_whole(shifted, 0, {}), run_whole(in, 0, {})), 2e-5) << "64 costs the inputs six bits";
}

TEST(Efficient, GivesTheCommonValueOfAllKeys) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 8));
  Inputs in(mech, 1, 9, 30, 1);
  for (float& x : in["v"].data()) x = 3;
  const Array out = run_whole(in, 0, {});
  for (int64_t i = 0; i < 9; ++i) EXPECT_NEAR(3, out.at(0, 1, i, 5), 2e-6);
}

TEST(Efficient, RefusesCausalBlocks) {
  for (const uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF}) {
    const Mechanism mech(plugin(), make_block(role, true, 2, 24, 24));
    for (const uint32_t flags : {0u, ATTN_STREAM}) expect_refused(mech, make_request(1, 4, 4, flags), "no causal form");
  }
}

TEST(Efficient, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, d = 24, e = 40, n = 7, m = 11;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, heads, d, e));
  Inputs in(mech, 1, n, m, 1);
  const uint64_t state = static_cast<uint64_t>(heads * (d * e + d + d)) * sizeof(float);
  expect_cost(mech, make_request(1, n, m, ATTN_STREAM, m),
              {linear_flops(heads, n + m, d, e), bytes_of(in, {"q", "k", "v"}), bytes_of(in, {"o"}), state});
}

}  // namespace
}  // namespace attnkit::test
