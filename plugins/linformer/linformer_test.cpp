// linformer against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <map>

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

// The matrix of head h in port e or f, of [rank][n_max] or [H][rank][n_max]; e where there is no f.
Matrix matrix_of(Inputs& in, const char* name, int64_t h) {
  const int at = in.mech->find(name);
  if (at < 0) return matrix_of(in, "e", h);
  const attn_port& port = *in.mech->ports()[static_cast<size_t>(at)];
  const bool by_head = port.ndim == 3;
  const int64_t rank = port.shape[by_head ? 1 : 0], n_max = port.shape[by_head ? 2 : 1];
  Matrix m(static_cast<size_t>(rank));
  for (int64_t t = 0; t < rank; ++t)
    for (int64_t j = 0; j < n_max; ++j)
      m[static_cast<size_t>(t)].push_back(in[name].at(0, 0, ((by_head ? h : 0) * rank + t) * n_max + j, 0));
  return m;
}

const WeightOf weights = by_head([](Inputs& in, int64_t b, int64_t h, const std::vector<int64_t>& seen) {
  return linformer(rows_of(in["q"], b, h, in["q"].rows), rows_of(in["k"], b, h, in.keys), matrix_of(in, "e", h),
                   matrix_of(in, "f", h), seen);
});

// The golden cases mask keys anywhere, which zeroes their rows before they are projected.
Matrix masked(const nlohmann::json& in, const char* name) {
  Matrix rows = in[name];
  for (size_t j = 0; j < rows.size() && in.contains("kmask"); ++j)
    if (!in["kmask"][j].get<bool>()) rows[j].assign(rows[j].size(), 0);
  return rows;
}

double check(const Settings& settings) {
  return check_situations(plugin(), settings, weights, undivided, nullptr, false,
                          [](const Situation& s) { return !s.block.causal; });
}

TEST(Linformer, EqualsItsFloat64Form) { record_error(check({})); }

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

TEST(Linformer, HasGradients) {
  double worst = 0;
  for (const char* sharing : {"heads", "per_head_kv", "all"})
    worst =
        worse(worst, check_gradients(plugin(), {{"sharing", sharing}, {"rank", int64_t{5}}, {"n_max", int64_t{100}}}));
  record_error(worst);
}

// Scores of 900 and -900: the larger one takes all.
TEST(Linformer, SurvivesScoresOf900) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 4, 2),
                       {{"rank", int64_t{2}}, {"n_max", int64_t{1}}});
  Inputs in(mech, 1, 2, 1, 1);
  put(Matrix{{1, 0, 0, 0}, {-1, 0, 0, 0}}, in["q"]);
  put(Matrix{{1800, 0, 0, 0}}, in["k"]);
  put(Matrix{{3, 5}}, in["v"]);
  put(Row{1, -1}, in["e"]);
  put(Row{2, 4}, in["f"]);
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
  const double error =
      error_of(run_whole(in, 0, {}), oracle(scene, weights(mech, in, scene, {}), elements(in["v"]), undivided));
  EXPECT_LE(error, kGate);
  record_error(error);
}

TEST(Linformer, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("linformer")) {
    const Matrix k = masked(g.in, "K"), v = masked(g.in, "V"), e = g.in["E"], f = g.in["F"];
    const std::vector<int64_t> seen(g.q.size(), static_cast<int64_t>(k.size()));
    EXPECT_LE(largest_difference(times(linformer(g.q, k, e, f, seen), v), g.o), 1e-12) << g.name;
    const Mechanism mech(plugin(), g.block(),
                         {{"rank", g.params["k"].get<int64_t>()}, {"n_max", g.params["n_max"].get<int64_t>()}});
    Inputs in(mech, 1, static_cast<int64_t>(g.q.size()), static_cast<int64_t>(k.size()), 1);
    put(g.q, in["q"]);
    put(k, in["k"]);
    put(v, in["v"]);
    put(flat(e), in["e"]);
    put(flat(f), in["f"]);
    const Matrix weights = linformer(rounded(g.q), rounded(k), rounded(e), rounded(f), seen);
    const Truth truth{g.scene(), flat(times(weights, rounded(v))), {}};
    const double error = error_of(run_whole(in, 0, {}), truth);
    EXPECT_LE(error, kGate) << g.name;
    worst = worse(worst, error);
  }
  record_error(worst);
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

// Each sum is one chain of additions in the order of the keys, so no chunking changes a bit.
TEST(Linformer, GivesEqualBitsHoweverKeysArrive) {
  for (const char* sharing : {"heads", "per_head_kv", "all"}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 40),
                         {{"sharing", sharing}, {"rank", int64_t{21}}, {"n_max", int64_t{80}}});
    Inputs in(mech, 1, 6, 80, 1);
    const Array whole = run_whole(in, 0, {});
    EXPECT_TRUE(same_bits(streamed(in, {{80}}), whole));
    EXPECT_TRUE(same_bits(streamed(in, {{1, 32, 0, 33, 14}}), whole));
    EXPECT_TRUE(same_bits(streamed(in, {chunks_of(80, 1)}), whole));
  }
}

TEST(Linformer, SharesTheRankAndTheQueriesOfOneHead) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 1, 64, 40), {{"rank", int64_t{100}}});
  EXPECT_EQ((std::vector<int64_t>{7, 16}), check_pieces(mech, 512));
}

TEST(Linformer, RefusesCausalBlocks) {
  for (const uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF})
    for (const uint32_t flags : {0u, ATTN_STREAM})
      expect_refused(Mechanism(plugin(), make_block(role, true, 2, 24, 24)), make_request(1, 4, 4, flags),
                     "there is no causal form");
}

TEST(Linformer, RefusesMoreKeysThanColumns) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 24), {{"n_max", int64_t{50}}});
  const std::string sentence =
      "n_max = 50 columns, one for each key, cannot project 51 keys: shorten the sequence, or train with a larger "
      "n_max";
  EXPECT_NO_THROW(Planned(mech, make_request(1, 400, 50)));
  EXPECT_NO_THROW(Planned(mech, make_request(1, 4, 10, ATTN_STREAM, 40)));
  for (const attn_request& r : {make_request(1, 4, 51), make_request(1, 4, 10, ATTN_STREAM, 41)}) {
    expect_refused(mech, r, sentence);
    EXPECT_EQ(sentence, refusal(mech, r).what());
  }
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
  const Moments of = moments(e);
  EXPECT_EQ(128 * 1024, e.rows);
  EXPECT_LE(of.largest, 1.0 / 32);
  EXPECT_GE(of.largest, 0.9999 / 32);
  EXPECT_NEAR(0, of.mean, 2e-4);
  EXPECT_NEAR(1.0 / 3 / 1024, of.square, 3e-6);
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
    Inputs in(mech, 1, n, m, 1);
    const uint64_t state = static_cast<uint64_t>(heads * (d * 32 + rank * e)) * 4;  // lanes of 16
    const uint64_t read = bytes_of(in, {"q", "k", "v"}) + static_cast<uint64_t>(matrices * rank * m) * 4;
    const Cost cost{flops, read, bytes_of(in, {"o"}), state};
    expect_cost(mech, make_request(1, n, m), cost);
    expect_cost(mech, make_request(1, n, m, ATTN_STREAM, m), cost);
  }
}

}  // namespace
}  // namespace attnkit::test
