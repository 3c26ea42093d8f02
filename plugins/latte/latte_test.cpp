// latte against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "latte_oracle.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

const Denominator one = [](double) { return 1.0; };  // the weights sum to 1 already
const std::pair<const std::string, Setting> cross{"cross", true};

void note(double error) { testing::Test::RecordProperty("error", std::to_string(1e9 * error) + "e-9"); }

TEST(Latte, EqualsItsFloat64Form) { note(check_situations(plugin(), {cross}, weights(false), one)); }

TEST(Latte, TakesAnyNumberOfLatentsThatItsHeadsShare) {
  for (const int64_t latents : {6, 30, 126})
    check_situations(plugin(), {cross, {"latents", latents}}, weights(false), one);
}

TEST(Latte, ScalesBothLogits) { check_situations(plugin(), {cross, {"scale", "inverse_sqrt"}}, weights(true), one); }

TEST(Latte, SurvivesLogitsOf900) {
  const auto enlarge = [](Inputs& in) {
    for (const char* name : {"latent_q", "latent_k"})
      for (float& x : in[name].data()) x *= 300;
  };
  note(check_situations(plugin(), {cross}, weights(false), one, enlarge));
}

TEST(Latte, DefaultsToAsManyLatentsAsTheModelIsWide) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 3, 24, 40));
  for (const char* name : {"latent_q", "latent_k"}) {
    const attn_port& port = *mech.ports()[static_cast<size_t>(mech.find(name))];
    EXPECT_EQ(24, port.shape[3]) << "d_model 72, 3 heads";
    EXPECT_EQ(static_cast<uint32_t>(ATTN_NO_BIAS), port.flags);
  }
}

Matrix rounded(Matrix rows) {
  for (Row& row : rows)
    for (double& x : row) x = static_cast<float>(x);
  return rows;
}

Truth truth_of(const Golden& g, const Matrix& q, const Matrix& k, const Matrix& v) {
  const auto n = static_cast<int64_t>(k.size());
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  return oracle(
      g.scene(),
      [&](int64_t, int64_t, int64_t i, int64_t j) {
        return weight_of(q[at(i)], k[at(j)], logs_of(k, g.causal ? i + 1 : n));
      },
      [&](int64_t, int64_t, int64_t j, int64_t c) { return v[at(j)][at(c)]; }, one);
}

void copy(const Matrix& rows, Array& array) {
  array.set([&](int64_t, int64_t, int64_t i, int64_t c) {
    return static_cast<float>(rows[static_cast<size_t>(i)][static_cast<size_t>(c)]);
  });
}

struct GoldenRun {
  explicit GoldenRun(const Golden& g)
      : mech(plugin(), make_block(g.causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF, g.causal, 1,
                                  static_cast<int32_t>(g.q[0].size()), static_cast<int32_t>(g.o[0].size()))),
        in(mech, 1, static_cast<int64_t>(g.q.size()), static_cast<int64_t>(g.k.size()), 1) {
    copy(g.q, in["latent_q"]);
    copy(g.k, in["latent_k"]);
    copy(g.v, in["v"]);
  }
  Mechanism mech;
  Inputs in;
};

TEST(Latte, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("latte")) {
    const Truth exact = truth_of(g, g.q, g.k, g.v);
    double largest = 1, off = 0;
    for (size_t i = 0; i < g.o.size(); ++i)
      for (size_t c = 0; c < g.o[i].size(); ++c) {
        largest = std::max(largest, std::abs(g.o[i][c]));
        off = std::max(off, std::abs(exact.at(0, 0, static_cast<int64_t>(i), static_cast<int64_t>(c)) - g.o[i][c]));
      }
    EXPECT_LE(off / largest, 1e-12) << g.name;
    GoldenRun run(g);
    const double error = error_of(run_whole(run.in, 0, {}), truth_of(g, rounded(g.q), rounded(g.k), rounded(g.v)));
    EXPECT_LE(error, kGate) << g.name;
    worst = std::max(worst, error);
  }
  note(worst);
}

TEST(Latte, LeavesTheGoldenState) {
  int cases = 0;
  for (const Golden& g : golden("latte")) {
    if (!g.causal) continue;
    ++cases;
    GoldenRun run(g);
    const auto n = static_cast<int64_t>(g.q.size());
    const size_t l = g.q[0].size(), e = g.v[0].size();
    const Planned plan(run.mech, make_request(1, n, n, ATTN_STREAM));
    const Arena arena(plan.info().state_bytes, 1);
    Call call;
    call.queries = call.keys = n;
    call.q_pos = call.k_pos = {0};
    call.arena = &arena;
    plan.run(run.in, call);
    std::vector<float> state(l * (e + 2));
    std::memcpy(state.data(), arena.row(0), state.size() * sizeof(float));
    for (size_t i = 0; i < l; ++i) {
      for (size_t c = 0; c < e; ++c) EXPECT_NEAR(g.params["state"]["vt"][i][c], state[i * e + c], 5e-5) << g.name;
      EXPECT_NEAR(g.params["state"]["alpha"][i], state[l * e + i], 5e-5) << g.name;
      EXPECT_EQ(static_cast<float>(g.params["state"]["m"][i].get<double>()), state[l * (e + 1) + i]) << g.name;
    }
  }
  EXPECT_EQ(3, cases);
}

// Reads n queries of cross attention, or as many as keys of causal self attention, after or while appending m keys.
Array streamed(Inputs& in, const std::vector<int32_t>& chunks, int64_t n, int64_t m) {
  const bool self = in.mech->block().causal != 0;
  const Planned plan(*in.mech, make_request(1, std::max(n, m), m, ATTN_STREAM, m));
  const Arena arena(plan.info().state_bytes, 1);
  const int64_t heads = in["v"].heads, e = in["v"].width;
  Array out(1, heads, n, e);
  Call call;
  call.arena = &arena;
  int32_t known = 0;
  const auto step = [&](int64_t from, int64_t queries, int64_t keys) {
    call.q_from = from;
    call.queries = queries;
    call.k_from = known;
    call.keys = keys;
    call.q_pos = {static_cast<int32_t>(from)};
    call.k_pos = {known};
    const Array got = plan.run(in, call);
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < queries; ++i)
        for (int64_t c = 0; c < e; ++c) out.at(0, h, from + i, c) = got.at(0, h, i, c);
  };
  for (const int32_t chunk : chunks) {
    step(self ? known : 0, self ? chunk : 0, chunk);
    known += chunk;
  }
  if (!self) {
    call.k_from = 0;
    step(0, n, 0);
  }
  return out;
}

// Logits that rise by slope from one position to the next: each token, some or none shrink what was summed.
void rise(Array& k, float slope) {
  for (int64_t h = 0; h < k.heads; ++h)
    for (int64_t j = 0; j < k.rows; ++j)
      for (int64_t l = 0; l < k.width; ++l) k.at(0, h, j, l) += slope * static_cast<float>(j);
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
      for (const std::vector<int32_t>& chunks :
           {std::vector<int32_t>(70, 1), {70}, {17, 0, 53}, {1, 31, 38}, std::vector<int32_t>(10, 7)})
        EXPECT_TRUE(same_bits(streamed(in, chunks, n, m), whole)) << self << " slope " << slope;
    }
}

TEST(Latte, StaysExactWhenEveryTokenRaisesTheMaximum) {
  for (const float slope : {0.25f, 3.0f})
    note(check_situations(plugin(), {cross}, weights(false), one, [slope](Inputs& in) {
      if (in["latent_k"].batch == 1) rise(in["latent_k"], slope);
    }));
}

TEST(Latte, TakesLogitsOfMinusInfinity) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 8, 8));
  Inputs in(mech, 1, 10, 10, 1), late = in;
  const float never = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < 3; ++j) in["latent_k"].at(0, 0, j, 2) = never;
  late["latent_k"].at(0, 0, 5, 2) = never;
  const Array out = run_whole(in, 0, {});
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(i < 3, std::isnan(out.at(0, 0, i, 0))) << "a softmax over nothing";
  EXPECT_TRUE(same_bits(streamed(in, {2, 5, 3}, 10, 10), out));
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

std::string refusal(const attn_block& block, const Settings& settings, uint32_t flags) {
  try {
    const Mechanism mech(plugin(), block, settings);
    const Planned plan(mech, make_request(1, 4, 4, flags));
  } catch (const Refused& refused) {
    EXPECT_EQ(ATTN_UNSUPPORTED, refused.code);
    return (refused.where < 0 ? "" : std::string(plugin().options[refused.where]->name) + ": ") + refused.what();
  }
  return "";
}

TEST(Latte, RefusesInItsOwnWords) {
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  const auto across = make_block(ATTN_DECODER_CROSS, false, 2, 24, 24);
  for (const uint32_t flags : {0u, ATTN_STREAM, ATTN_PREFIX}) {
    EXPECT_TRUE(has(refusal(across, {}, flags), "defines self attention alone: set cross = true"));
    EXPECT_EQ("", refusal(across, {cross}, flags));
  }
  const auto encoder = make_block(ATTN_ENCODER_SELF, false, 2, 24, 24);
  EXPECT_TRUE(has(refusal(encoder, {}, ATTN_STREAM), "bidirectional self attention cannot stream"));
  EXPECT_EQ("", refusal(encoder, {}, 0));
  EXPECT_TRUE(has(refusal(make_block(ATTN_DECODER_SELF, true, 2, 24, 24), {}, ATTN_PREFIX), "without ATTN_PREFIX"));
  const std::string uneven = refusal(make_block(ATTN_DECODER_SELF, true, 12, 43, 43), {{"latents", int64_t{512}}}, 0);
  EXPECT_TRUE(has(uneven, "latents: ")) << uneven;
  EXPECT_TRUE(has(uneven, "latents 512 cannot be shared out among 12 heads: choose a multiple of 12")) << uneven;
}

// Multiply-adds and elements counted one by one, the way the equation is written.
TEST(Latte, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, l = 10, e = 40, n = 7, m = 11;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, heads, 24, e), {cross, {"latents", heads * l}});
  uint64_t adds = 0;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t row = 0; row < n + m; ++row)
      for (int64_t latent = 0; latent < l; ++latent) adds += static_cast<uint64_t>(e + 1);
  Inputs in(mech, 1, n, m, 1);
  const auto bytes = [&in](const char* name) {
    return static_cast<uint64_t>(in[name].heads * in[name].rows * in[name].width) * sizeof(float);
  };
  const uint64_t state = static_cast<uint64_t>(heads * (l * e + l + l)) * sizeof(float);
  const attn_info info = Planned(mech, make_request(1, n, m, ATTN_STREAM, m)).info();
  EXPECT_EQ(2 * adds, info.flops);
  EXPECT_EQ((state + 63) / 64 * 64, info.state_bytes);
  EXPECT_EQ(bytes("latent_q") + bytes("latent_k") + bytes("v") + state, info.bytes_read);
  EXPECT_EQ(bytes("o") + state, info.bytes_written);
  EXPECT_EQ(info.state_bytes, Planned(mech, make_request(1, 1, 1, ATTN_STREAM, 99999)).info().state_bytes);
}

}  // namespace
}  // namespace attnkit::test
