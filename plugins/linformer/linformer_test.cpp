// linformer against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "float64_form.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

// Every situation of the suite that is not causal; returns the largest error.
double check(const Settings& settings) {
  double worst = 0;
  for (const Situation& s : situations()) {
    if (s.block.causal) continue;
    const Mechanism mech(plugin(), s.block, settings);
    Inputs in(mech, s.batch, s.queries, s.keys, 3);
    Call call;
    call.q_len = s.q_len;
    call.k_len = s.k_len;
    for (int64_t i = 0; i < s.batch * s.queries && s.prefix; ++i)
      call.visible.push_back(static_cast<int32_t>((i % s.queries) / 4 * 9));
    const Scene scene{s.batch, s.block.heads, s.queries, s.keys,      s.block.head_width,
                      false,   s.q_len,       s.k_len,   call.visible};
    const Array got = run_whole(in, s.prefix ? ATTN_PREFIX : 0, call);
    const Array& v = in["v"];
    const Truth truth = oracle(
        scene, weights(in, scene),
        [&v](int64_t b, int64_t h, int64_t j, int64_t c) { return double{v.at(b, h, j, c)}; }, one);
    const double error = error_of(got, truth);
    EXPECT_LE(error, kGate) << s.name;
    worst = std::max(worst, error);
  }
  return worst;
}

TEST(Linformer, EqualsItsFloat64Form) { RecordProperty("error", std::to_string(1e9 * check({})) + "e-9"); }

TEST(Linformer, HasOptions) {
  const Settings sizes = {{"rank", int64_t{13}}, {"n_max", int64_t{100}}};
  for (const char* sharing : {"heads", "per_head_kv", "all"}) {
    Settings settings = sizes;
    settings["sharing"] = sharing;
    check(settings);
  }
  check({{"rank", int64_t{1}}, {"n_max", int64_t{100}}});
  check({{"rank", int64_t{64}}, {"n_max", int64_t{101}}});
}

// Scores of 900 and -900: the larger one takes all.
TEST(Linformer, SurvivesScoresOf900) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 4, 2),
                       {{"rank", int64_t{2}}, {"n_max", int64_t{1}}});
  Inputs in(mech, 1, 2, 1, 1);
  const auto set = [&in](const char* name, const std::vector<float>& to) {
    in[name].set(
        [&](int64_t, int64_t, int64_t i, int64_t c) { return to[static_cast<size_t>(i * in[name].width + c)]; });
  };
  set("q", {1, 0, 0, 0, -1, 0, 0, 0});
  set("k", {1800, 0, 0, 0});
  set("v", {3, 5});
  set("e", {1, -1});
  set("f", {2, 4});
  const Array out = run_whole(in, 0, {});
  EXPECT_EQ(6, out.at(0, 0, 0, 0));
  EXPECT_EQ(10, out.at(0, 0, 0, 1));
  EXPECT_EQ(12, out.at(0, 0, 1, 0));
  EXPECT_EQ(20, out.at(0, 0, 1, 1));
}

// One sequence as long as the default allows.
TEST(Linformer, StaysAccurateOverItsLongestSequence) {
  const int64_t n = 2, m = 4096;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 8, 8));
  Inputs in(mech, 1, n, m, 1);
  for (float& x : in["v"].data()) x += 1;
  const Scene scene{1, 1, n, m, 8, false, {}, {}, {}};
  const Array& v = in["v"];
  const Truth truth = oracle(
      scene, weights(in, scene), [&v](int64_t b, int64_t h, int64_t j, int64_t c) { return double{v.at(b, h, j, c)}; },
      one);
  const double error = error_of(run_whole(in, 0, {}), truth);
  EXPECT_LE(error, kGate);
  RecordProperty("error", std::to_string(1e9 * error) + "e-9");
}

TEST(Linformer, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("linformer")) {
    const Matrix k = masked(g.in, "K"), v = masked(g.in, "V"), e = g.in["E"], f = g.in["F"];
    const Truth exact = golden_truth(g, g.q, k, v, e, f);
    for (size_t i = 0; i < exact.o.size(); ++i)
      EXPECT_NEAR(exact.o[i], g.o[i / g.o[0].size()][i % g.o[0].size()], 1e-12) << g.name;
    const Mechanism mech(plugin(), g.block(),
                         {{"rank", g.params["k"].get<int64_t>()}, {"n_max", g.params["n_max"].get<int64_t>()}});
    Inputs in(mech, 1, static_cast<int64_t>(g.q.size()), static_cast<int64_t>(k.size()), 1);
    put(in["q"], g.q);
    put(in["k"], k);
    put(in["v"], v);
    put(in["e"], e);
    put(in["f"], f);
    const double error =
        error_of(run_whole(in, 0, {}), golden_truth(g, rounded(g.q), rounded(k), rounded(v), rounded(e), rounded(f)));
    EXPECT_LE(error, kGate) << g.name;
    worst = std::max(worst, error);
  }
  RecordProperty("error", std::to_string(1e9 * worst) + "e-9");
}

// Keys and values that are zero add nothing to the sums: padding by length and padding by zeros are one thing.
TEST(Linformer, PaddedKeysCountAsZeros) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 24, 40), {{"n_max", int64_t{64}}});
  Inputs in(mech, 1, 50, 50, 1), zero = in;
  for (const char* name : {"k", "v"})
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 31; j < 50; ++j)
        for (int64_t c = 0; c < in[name].width; ++c) zero[name].at(0, h, j, c) = 0;
  Call call;
  call.k_len = {31};
  EXPECT_TRUE(same_bits(run_whole(in, 0, call), run_whole(zero, 0, {})));
}

// Over no keys the projected rows are zero and their softmax would be uniform; the contract says zeros.
TEST(Linformer, GivesZerosToAQueryThatSeesNothing) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 40));
  Inputs in(mech, 1, 6, 9, 1);
  Call call;
  call.visible = {0, 0, 4, 4, 9, 9};
  const Array out = run_whole(in, ATTN_PREFIX, call);
  for (int64_t c = 0; c < 40; ++c) {
    EXPECT_EQ(0, out.at(0, 1, 1, c));
    EXPECT_NE(0, out.at(0, 1, 2, c));
  }
  const Planned plan(mech, make_request(1, 6, 9, ATTN_STREAM, 9));
  const Arena arena(plan.info().state_bytes, 1);
  Call empty;
  empty.arena = &arena;
  empty.queries = 6;
  empty.q_pos = empty.k_pos = {0};
  EXPECT_EQ(0, plan.run(in, empty).at(0, 0, 5, 0));
}

Array streamed(Inputs& in, const std::vector<int32_t>& chunks, int64_t n, int64_t m) {
  const Planned plan(*in.mech, make_request(1, n, m, ATTN_STREAM, 0));
  const Arena arena(plan.info().state_bytes, 1);
  Call call;
  call.arena = &arena;
  call.q_pos = {0};
  int32_t known = 0;
  for (const int32_t chunk : chunks) {
    call.k_from = known;
    call.keys = chunk;
    call.k_pos = {known};
    plan.run(in, call);
    known += chunk;
  }
  call.keys = 0;
  call.queries = n;
  call.k_pos = {known};
  return plan.run(in, call);
}

// Each sum is one chain of additions in the order of the keys, so no chunking changes a bit.
TEST(Linformer, GivesEqualBitsHoweverKeysArrive) {
  for (const char* sharing : {"heads", "per_head_kv", "all"}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 40),
                         {{"sharing", sharing}, {"rank", int64_t{21}}, {"n_max", int64_t{80}}});
    Inputs in(mech, 1, 6, 80, 1);
    const Array whole = run_whole(in, 0, {});
    EXPECT_TRUE(same_bits(streamed(in, {80}, 6, 80), whole));
    EXPECT_TRUE(same_bits(streamed(in, {1, 32, 0, 33, 14}, 6, 80), whole));
    EXPECT_TRUE(same_bits(streamed(in, std::vector<int32_t>(80, 1), 6, 80), whole));
  }
}

std::string refusal(const Mechanism& mech, const attn_request& request) {
  try {
    Planned(mech, request);
  } catch (const Refused& refused) {
    EXPECT_EQ(ATTN_UNSUPPORTED, refused.code);
    return refused.what();
  }
  return "";
}

TEST(Linformer, RefusesCausalBlocks) {
  for (const uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF})
    for (const uint32_t flags : {0u, ATTN_STREAM})
      EXPECT_NE(std::string::npos,
                refusal(Mechanism(plugin(), make_block(role, true, 2, 24, 24)), make_request(1, 4, 4, flags))
                    .find("there is no causal form"));
}

TEST(Linformer, RefusesMoreKeysThanColumns) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 24), {{"n_max", int64_t{50}}});
  const std::string sentence =
      "n_max = 50 columns, one for each key, cannot project 51 keys: shorten the sequence, or train with a larger "
      "n_max";
  EXPECT_EQ("", refusal(mech, make_request(1, 400, 50)));
  EXPECT_EQ(sentence, refusal(mech, make_request(1, 4, 51)));
  EXPECT_EQ("", refusal(mech, make_request(1, 4, 10, ATTN_STREAM, 40)));
  EXPECT_EQ(sentence, refusal(mech, make_request(1, 4, 10, ATTN_STREAM, 41)));
}

TEST(Linformer, ProjectsTheLastColumn) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 8, 8),
                       {{"n_max", int64_t{50}}, {"rank", int64_t{3}}});
  Inputs in(mech, 1, 4, 50, 1), other = in;
  other["f"].at(0, 0, 149, 0) += 1;
  EXPECT_FALSE(same_bits(run_whole(in, 0, {}), run_whole(other, 0, {})));
}

TEST(Linformer, FillsLikeALinearLayer) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 24, 24), {{"n_max", int64_t{1024}}});
  Inputs in(mech, 1, 1, 1, 42), other(mech, 1, 1, 1, 43);
  const Array& e = in["e"];
  double mean = 0, square = 0, largest = 0;
  for (int64_t i = 0; i < e.rows; ++i) {
    const double x = e.at(0, 0, i, 0);
    mean += x / static_cast<double>(e.rows);
    square += x * x / static_cast<double>(e.rows);
    largest = std::max(largest, std::abs(x));
  }
  EXPECT_EQ(128 * 1024, e.rows);
  EXPECT_LE(largest, 1.0 / 32);
  EXPECT_GE(largest, 0.9999 / 32);
  EXPECT_NEAR(0, mean, 2e-4);
  EXPECT_NEAR(1.0 / 3 / 1024, square, 3e-6);
  EXPECT_EQ(-0x1.444a4ep-7f, e.at(0, 0, 0, 0));
  EXPECT_FALSE(same_bits(e, in["f"]));
  EXPECT_FALSE(same_bits(e, other["e"]));
}

TEST(Linformer, HasTheMatricesOfItsSharing) {
  const auto block = make_block(ATTN_ENCODER_SELF, false, 3, 24, 24);
  const auto floats = [&block](const char* sharing) {
    const Mechanism mech(plugin(), block, {{"sharing", sharing}, {"rank", int64_t{5}}, {"n_max", int64_t{7}}});
    int64_t sum = 0;
    for (const attn_port* port : mech.ports())
      if (port->kind == ATTN_LEARNED) sum += Array::stored(*port).rows;
    return sum;
  };
  EXPECT_EQ(2 * 5 * 7, floats("heads"));
  EXPECT_EQ(3 * 5 * 7, floats("per_head_kv"));
  EXPECT_EQ(5 * 7, floats("all"));
}

// Multiply-adds and elements counted one by one, the way the equations are written.
TEST(Linformer, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, d = 24, e = 40, n = 7, m = 11, rank = 20;
  uint64_t flops = 0;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t t = 0; t < rank; ++t)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t c = 0; c < d + e; ++c) flops += 2;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t t = 0; t < rank; ++t) {
        for (int64_t c = 0; c < d + e; ++c) flops += 2;
        flops += 5;
      }
  }
  for (const auto& [sharing, matrices] : std::map<std::string, int64_t>{{"heads", 2}, {"per_head_kv", 3}, {"all", 1}}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, heads, d, e),
                         {{"rank", rank}, {"sharing", sharing}});
    const attn_info info = Planned(mech, make_request(1, n, m, ATTN_STREAM, m)).info();
    const uint64_t state = static_cast<uint64_t>(heads * (d * 32 + rank * e)) * 4;  // lanes of 16
    const auto inputs = static_cast<uint64_t>(heads * (n * d + m * (d + e)) + matrices * rank * m) * 4;
    EXPECT_EQ(flops, info.flops);
    EXPECT_EQ((state + 63) / 64 * 64, info.state_bytes);
    EXPECT_EQ(inputs + state, info.bytes_read);
    EXPECT_EQ(static_cast<uint64_t>(heads * n * e) * 4 + state, info.bytes_written);
    const attn_info whole = Planned(mech, make_request(1, n, m)).info();
    EXPECT_EQ(flops, whole.flops);
    EXPECT_EQ(0u, whole.state_bytes);
    EXPECT_EQ(inputs, whole.bytes_read);
  }
}

}  // namespace
}  // namespace attnkit::test
