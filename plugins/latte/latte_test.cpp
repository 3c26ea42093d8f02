// latte against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

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

const std::pair<const std::string, Setting> cross{"cross", true};

WeightOf weights(bool scaled = false) {
  return by_head([scaled](Inputs& in, int64_t b, int64_t h, const std::vector<int64_t>& seen) {
    const attn_block& block = in.mech->block();
    Matrix q = rows_of(in["latent_q"], b, h, in["latent_q"].rows), k = rows_of(in["latent_k"], b, h, in.keys);
    for (Matrix* logits : {&q, &k})
      for (Row& row : *logits)
        for (double& x : row) x *= scaled ? std::pow(static_cast<double>(block.d_model) / block.heads, -0.5) : 1;
    return latte(q, k, seen);
  });
}

TEST(Latte, EqualsItsFloat64Form) { record_error(check_situations(plugin(), {cross}, weights(), undivided)); }

TEST(Latte, TakesAnyNumberOfLatentsThatItsHeadsShare) {
  for (const int64_t latents : {6, 30, 126})
    check_situations(plugin(), {cross, {"latents", latents}}, weights(), undivided);
}

TEST(Latte, ScalesBothLogits) {
  check_situations(plugin(), {cross, {"scale", "inverse_sqrt"}}, weights(true), undivided);
}

TEST(Latte, SurvivesLogitsOf900) {
  const auto enlarge = [](Inputs& in) {
    for (const char* name : {"latent_q", "latent_k"})
      for (float& x : in[name].data()) x *= 300;
  };
  record_error(check_situations(plugin(), {cross}, weights(), undivided, enlarge));
}

TEST(Latte, DefaultsToAsManyLatentsAsTheModelIsWide) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 3, 24, 40));
  for (const char* name : {"latent_q", "latent_k"}) {
    const attn_port& port = *mech.ports()[static_cast<size_t>(mech.find(name))];
    EXPECT_EQ(24, port.shape[3]) << "d_model 72, 3 heads";
    EXPECT_EQ(static_cast<uint32_t>(ATTN_NO_BIAS), port.flags);
  }
}

std::vector<Golden> cases() {
  std::vector<Golden> all = golden("latte");
  for (Golden& g : all) {
    if (!g.causal) g.role = ATTN_ENCODER_SELF;
    g.q_port = "latent_q";
    g.k_port = "latent_k";
  }
  return all;
}

TEST(Latte, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : cases())
    worst = worse(worst, check_golden(plugin(), g, {}, weight_in(latte(g.q, g.k, g.seen())),
                                      weight_in(latte(rounded(g.q), rounded(g.k), g.seen())), undivided, {}));
  record_error(worst);
}

TEST(Latte, LeavesTheGoldenState) {
  int causal = 0;
  for (const Golden& g : cases()) {
    if (!g.causal) continue;
    ++causal;
    const auto n = static_cast<int64_t>(g.q.size());
    const size_t l = g.q[0].size(), e = g.v[0].size();
    const Mechanism mech(plugin(), g.block());
    Inputs in(mech, 1, n, n, 1);
    put(g.q, in[g.q_port]);
    put(g.k, in[g.k_port]);
    put(g.v, in["v"]);
    const Planned plan(mech, make_request(1, n, n, ATTN_STREAM));
    const Arena arena(plan.info().state_bytes, 1);
    Call call;
    call.queries = call.keys = n;
    call.q_pos = call.k_pos = {0};
    call.arena = &arena;
    plan.run(in, call);
    std::vector<float> state(l * (e + 2));
    std::memcpy(state.data(), arena.row(0), state.size() * sizeof(float));
    for (size_t i = 0; i < l; ++i) {
      for (size_t c = 0; c < e; ++c) EXPECT_NEAR(g.params["state"]["vt"][i][c], state[i * e + c], 5e-5) << g.name;
      EXPECT_NEAR(g.params["state"]["alpha"][i], state[l * e + i], 5e-5) << g.name;
      EXPECT_EQ(static_cast<float>(g.params["state"]["m"][i].get<double>()), state[l * (e + 1) + i]) << g.name;
    }
  }
  EXPECT_EQ(3, causal);
}

TEST(Latte, HasGradients) {
  record_error(check_gradients(plugin(), {cross}));
  check_gradients(plugin(), {cross, {"latents", int64_t{30}}, {"scale", "inverse_sqrt"}});
}

TEST(Latte, HasTheGoldenGradients) {
  int count = 0;
  double worst = 0;
  for (const Golden& g : cases()) {
    if (!g.out.contains("dV")) continue;
    SCOPED_TRACE(g.name);
    const Mechanism mech(plugin(), g.block());
    ByPort gradients{{"v", g.out["dV"]}};
    if (g.q.size() > 1) {  // one token sees itself whatever its logits: what is there is rounding
      gradients["latent_q"] = g.out["dQl"];
      gradients["latent_k"] = g.out["dKl"];
    }
    worst = worse(worst, check_golden_gradients(mech, {}, {{"latent_q", g.q}, {"latent_k", g.k}, {"v", g.v}}, g.in["G"],
                                                gradients));
    ++count;
  }
  EXPECT_EQ(3, count);
  record_error(worst);
}

// Logits that rise by slope from one position to the next: each token, some or none shrink what was summed.
void rise(Array& k, float slope) {
  for (int64_t h = 0; h < k.heads; ++h)
    for (int64_t j = 0; j < k.rows; ++j)
      for (int64_t l = 0; l < k.width; ++l) k.at(0, h, j, l) += slope * static_cast<float>(j);
}

constexpr float kNever = -std::numeric_limits<float>::infinity();
void never_before(Array& k, int64_t n) {
  for (int64_t j = 0; j < n; ++j) k.at(0, 0, j, 2) = kNever;
}

// Stronger than the law of conformance, which lets different splits differ by rounding.
TEST(Latte, IsTheSameBitForBitHoweverItIsSplit) {
  const int64_t m = 70;
  for (const bool self : {true, false})
    for (const float slope : {0.0f, 0.5f, -0.5f, 4.0f, 200.0f}) {
      const auto block = make_block(self ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, self, 2, 24, 40);
      const Mechanism mech(plugin(), block, {cross});
      const int64_t n = self ? m : 19;
      Inputs in(mech, 1, n, m, 1);
      rise(in["latent_k"], slope);
      const Array whole = run_whole(in, 0, {});
      EXPECT_TRUE(all_finite(whole));
      for (const std::vector<int64_t>& chunks : {chunks_of(m, 1), {70}, {17, 0, 53}, {1, 31, 38}, chunks_of(m, 7)})
        EXPECT_TRUE(same_bits(streamed(in, {chunks}), whole)) << self << " slope " << slope;
    }
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 8, 8));
  Inputs in(mech, 1, 10, 10, 1);
  never_before(in["latent_k"], 3);
  EXPECT_TRUE(same_bits(streamed(in, {{2, 5, 3}}), run_whole(in, 0, {})));
}

TEST(Latte, StaysExactWhenEveryTokenRaisesTheMaximum) {
  for (const float slope : {0.25f, 3.0f})
    record_error(check_situations(plugin(), {cross}, weights(), undivided, [slope](Inputs& in) {
      if (in["latent_k"].batch == 1) rise(in["latent_k"], slope);
    }));
}

// Blocks of the gradient end where the scale would change too much: in the middle, or after every token.
TEST(Latte, HasGradientsWhenTheMaximumRises) {
  const auto steep = [](float slope) {
    return GradientCheck{.prepare = [slope](Inputs& in) { rise(in["latent_k"], slope); }};
  };
  check_gradients(plugin(), {cross}, steep(2));
  check_gradients(plugin(), {cross}, steep(-2));
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 8, 8));
  Inputs in(mech, 1, 90, 90, 1);
  rise(in["latent_k"], 200);
  for (const Array& gradient : backward(in, 0, {})) EXPECT_TRUE(all_finite(gradient));
}

// Several tiles of the gradient, and more than it keeps the sums of.
TEST(Latte, HasGradientsOfLongSequences) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 8, 8));
  for (const auto& [n, slope] : {std::pair{2100, 2.0f}, {2100, -2.0f}, {40000, 0.0f}}) {
    Inputs in(mech, 1, n, n, 1);
    rise(in["latent_k"], slope);
    record_error(check_gradients(in, 0, {}, false));
  }
}

TEST(Latte, TakesLogitsOfMinusInfinity) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 8, 8));
  Inputs in(mech, 1, 10, 10, 1), late = in;
  never_before(in["latent_k"], 3);
  late["latent_k"].at(0, 0, 5, 2) = kNever;
  const Array out = run_whole(in, 0, {});
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(i < 3, std::isnan(out.at(0, 0, i, 0))) << "a softmax over nothing";
  EXPECT_TRUE(all_finite(run_whole(late, 0, {})));
}

TEST(Latte, IsNotImpressedByHugeLogitsOfPadding) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16));
  Inputs in(mech, 1, 20, 20, 1), padded = in;
  for (int64_t j = 12; j < 20; ++j)
    for (int64_t l = 0; l < 16; ++l) padded["latent_k"].at(0, 1, j, l) = 1e6f;
  Call call;
  call.q_len = call.k_len = {12};
  const Array out = run_whole(padded, 0, call);
  EXPECT_TRUE(all_finite(out));
  EXPECT_TRUE(same_bits(run_whole(in, 0, call), out));
}

TEST(Latte, RefusesInItsOwnWords) {
  const auto request = [](uint32_t flags) { return make_request(1, 4, 4, flags); };
  const auto across = make_block(ATTN_DECODER_CROSS, false, 2, 24, 24);
  const Mechanism unasked(plugin(), across), asked(plugin(), across, {cross}),
      encoder(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 24, 24)),
      decoder(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 24, 24));
  for (const uint32_t flags : {0u, ATTN_STREAM, ATTN_PREFIX}) {
    expect_refused(unasked, request(flags), "defines self attention alone: set cross = true");
    EXPECT_NO_THROW(Planned(asked, request(flags)));
  }
  expect_refused(encoder, request(ATTN_STREAM), "bidirectional self attention cannot stream");
  EXPECT_NO_THROW(Planned(encoder, request(0)));
  expect_refused(decoder, request(ATTN_PREFIX), "without ATTN_PREFIX");
  expect_refused(plugin(), make_block(ATTN_DECODER_SELF, true, 12, 43, 43), {{"latents", int64_t{512}}},
                 "latents 512 cannot be shared out among 12 heads: choose a multiple of 12", "latents");
}

TEST(Latte, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, l = 10, e = 40, n = 7, m = 11;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, heads, 24, e), {cross, {"latents", heads * l}});
  Inputs in(mech, 1, n, m, 1);
  const uint64_t state = static_cast<uint64_t>(heads * (l * e + l + l)) * sizeof(float);
  expect_cost(
      mech, make_request(1, n, m, ATTN_STREAM, m),
      {linear_flops(heads, n + m, l, e), bytes_of(in, {"latent_q", "latent_k", "v"}), bytes_of(in, {"o"}), state});
  EXPECT_EQ(state_row(state), Planned(mech, make_request(1, 1, 1, ATTN_STREAM, 99999)).info().state_bytes);
}

}  // namespace
}  // namespace attnkit::test
