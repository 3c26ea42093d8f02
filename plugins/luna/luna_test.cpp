// luna against its own float64 form, called through the ABI.
#include "check.hpp"
#include "support/stream.hpp"

namespace attnkit::test {
namespace {

TEST(Luna, EqualsItsFloat64Form) { record_error(check(Options{})); }

TEST(Luna, EqualsItsFloat64FormUntied) { record_error(check({.tied = false})); }

TEST(Luna, TakesEveryOption) {
  check({.contextual = false});
  check({.dynamic = false});
  check({.without_aux = true});
  check({.pheads = 4});
  check({.tied = false, .contextual = false, .pheads = 1});
  check({.activation = "softplus"});
  check({.tied = false, .activation = "elu1"});
}

TEST(Luna, TakesAnyNumberOfRowsOfP) {
  for (const int64_t l : {1, 7, 17, 40})
    for (const bool is_causal : {false, true}) {
      const Mechanism mech(plugin(),
                           make_block(is_causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF, is_causal, 3, 12, 12),
                           {{"projection", l}});
      Inputs in(mech, 2, 30, 30, 1);
      check(in, {});
    }
}

// Scores in the hundreds, whose exponentials would overflow; keys that grow, so that every tile moves the largest
// score.
TEST(Luna, SurvivesLargeScores) {
  for (const char* name : {"p", "q"})
    check({}, [name](Inputs& in) {
      if (in.mech->block().causal) return;
      for (float& x : in[name].data()) x *= 200;
    });
  for (const float slope : {0.2f, -0.2f}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 16, 16));
    Inputs in(mech, 1, 5, 300, 1);
    for (int64_t j = 0; j < 300; ++j)
      for (int64_t c = 0; c < 16; ++c) in["pk"].at(0, 1, j, c) += slope * static_cast<float>(j);
    check(in, {});
  }
}

// The maps where e^x would overflow or vanish: one latent, so that o = A v (t = 1) shows A itself.
TEST(Luna, MapsAnyScore) {
  for (const char* map : {"log2", "softplus", "elu1"}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 1, 1),
                         {{"projection", int64_t{1}}, {"activation", std::string(map)}});
    for (const double x : {-200.0, -60.0, -20.0, -3.0, -1e-3, 0.0, 1e-3, 0.5, 2.0, 30.0, 500.0}) {
      Inputs in(mech, 1, 1, 1, 1);
      in["p"].at(0, 0, 0, 0) = 1;
      in["pq_weight"].at(0, 0, 0, 0) = 1;
      in["pq_bias"].at(0, 0, 0, 0) = 0;
      in["k"].at(0, 0, 0, 0) = 1;
      in["pk"].at(0, 0, 0, 0) = static_cast<float>(x);
      const double want = activation(map, static_cast<float>(x));
      EXPECT_NEAR(want, run_whole(in, 0, {}).at(0, 0, 0, 0), 2e-7 * (5 + std::abs(x)) * want + 1e-37)
          << map << " " << x;
    }
  }
}

using Ports = std::map<std::string, Matrix>;

void put(const Affine& f, Inputs& in, const std::string& name) {
  put(flat(transposed(f.w)), in[name + "_weight"]);
  put(f.b, in[name + "_bias"]);
}

// The test makes q, pk and pv of X and C as a host would, and applies W_o to what comes out.
TEST(Luna, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("luna_bi")) {
    const auto dense = [&g](const std::string& name) {  // theirs is [out][in]
      return Affine{transposed(g.params["W" + name]), g.params["b" + name]};
    };
    Matrix context = g.in["C"];
    if (!g.in["cmask"].is_null())
      context.resize(
          static_cast<size_t>(std::ranges::count(g.in["cmask"].get<std::vector<bool>>(), true)));  // they mask the end
    const Matrix p = g.in["P"], q = project(g.in["X"].get<Matrix>(), dense("q"));
    const Matrix pk = project(context, dense("pk")), pv = project(context, dense("pv"));
    const size_t heads = g.params["heads"], pheads = g.params["pheads"];
    const Weights weights{dense("pq"), dense("k"), dense("v"), {}, {}};
    const Packed exact = packed(p, q, pk, pv, weights, heads, pheads);
    EXPECT_LE(largest_difference(project(exact.o, dense("o")), g.o), 1e-12) << g.name;
    EXPECT_LE(largest_difference(exact.y, g.out["YP"]), 1e-12) << g.name;

    const auto width = static_cast<int32_t>(q[0].size() / heads);
    const Options options{.tied = false, .pheads = static_cast<int64_t>(pheads)};
    Settings settings = options.settings();
    settings["projection"] = static_cast<int64_t>(p.size());
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, static_cast<uint32_t>(heads), width, width),
                         settings);
    Inputs in(mech, 1, static_cast<int64_t>(q.size()), static_cast<int64_t>(pk.size()), 1);
    for (const auto& [name, rows] : Ports{{"p", p}, {"q", q}, {"pk", pk}, {"pv", pv}}) put(rows, in[name]);
    for (const auto& [name, f] : std::map<std::string, Affine>{{"pq", weights.pq}, {"k", weights.k}, {"v", weights.v}})
      put(f, in, name);
    worst = std::max(worst, check(in, options));
  }
  record_error(worst);
}

// Their q and pq are scaled already; here the plugin does that.
TEST(Luna, EqualsTheGoldenCausalCases) {
  double worst = 0;
  for (const Golden& g : golden("luna_causal")) {
    const std::string act = g.params["act"];
    const Options options{.tied = false, .activation = act == "softplus_log2" ? "log2" : act == "elu" ? "elu1" : act};
    Matrix q = g.in["q"], pq = g.in["pq"];
    const Matrix k = g.in["k"], v = g.in["v"], pk = g.in["pk"];
    const size_t d = k[0].size();
    for (Matrix* m : {&q, &pq})
      for (auto& row : *m)
        for (double& x : row) x *= std::sqrt(static_cast<double>(d));
    EXPECT_LE(largest_difference(causal(pq, q, k, v, pk, options.activation), g.o), 1e-12) << g.name;
    Settings settings = options.settings();
    settings["projection"] = static_cast<int64_t>(pq.size());
    const auto width = static_cast<int32_t>(d);
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, width, width), settings);
    Inputs in(mech, 1, static_cast<int64_t>(q.size()), static_cast<int64_t>(k.size()), 1);
    for (const auto& [name, rows] : Ports{{"p", pq}, {"q", q}, {"k", k}, {"v", v}, {"pk", pk}}) put(rows, in[name]);
    Affine identity{Matrix(d, Row(d)), Row(d)};
    for (size_t i = 0; i < d; ++i) identity.w[i][i] = 1;
    put(identity, in, "pq");
    worst = std::max(worst, check(in, options));
  }
  record_error(worst);
}

TEST(Luna, GivesPAfterEachReadOfAStream) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 24));
  Inputs in(mech, 1, 6, 200, 1);
  Aux whole, pieces;
  const Array out = run_whole(in, 0, {}, 1, &whole);
  EXPECT_TRUE(same_bits(out, streamed(in, {.keys = {200}, .flags = ATTN_KNOWS_K_TOTAL}, &pieces)));
  EXPECT_TRUE(same_bits(whole.at("p"), pieces.at("p")));
  EXPECT_LE(rms_ratio(streamed(in, {.keys = {3, 150, 0, 47}, .flags = ATTN_KNOWS_K_TOTAL}, &pieces), out), kGate);
  EXPECT_LE(rms_ratio(pieces.at("p"), whole.at("p")), kGate);
}

// A source that grows is packed anew from running sums: after every append the answer is that of the whole so far.
TEST(Luna, TakesAGrowingSourceWhenPIsItsOwn) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 24), {{"contextual", false}});
  for (const int32_t known : {3, 20, 90}) {
    Inputs in(mech, 1, 6, known, 1);
    Aux none;
    EXPECT_LE(rms_ratio(streamed(in, {.keys = {2, 1, known - 3}}, &none), run_whole(in, 0, {})), kGate) << known;
    EXPECT_TRUE(none.empty());
  }
}

TEST(Luna, ContextThatIsNotThereGivesZerosAndAnEmptyP) {
  for (const bool dynamic : {true, false}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 8, 8), {{"dynamic", dynamic}});
    Inputs in(mech, 1, 3, 0, 1);
    Aux aux;
    const Array out = run_whole(in, 0, {}, 1, &aux);
    for (int64_t c = 0; c < 8; ++c) EXPECT_EQ(0, out.at(0, 1, 2, c));
    for (int64_t c = 0; c < 16; ++c) EXPECT_EQ(0, aux.at("p").at(0, 0, 15, c));
  }
}

// P' of a short source ends in rows of zeros, and a causal block leaves those out.
TEST(Luna, LeavesOutRowsOfPThatAShortSourceLeftEmpty) {
  const auto decoder = make_block(ATTN_DECODER_SELF, true, 2, 12, 12);
  const Mechanism wide(plugin(), decoder), narrow(plugin(), decoder, {{"projection", int64_t{5}}}),
      all(plugin(), decoder, {{"dynamic", false}});
  Inputs in(wide, 1, 20, 20, 1), small(narrow, 1, 20, 20, 1), counted(all, 1, 20, 20, 1);
  for (Inputs* other : {&small, &counted})
    for (const char* name : {"q", "k", "pk", "pq_weight", "pq_bias"}) (*other)[name] = in[name];
  for (int64_t i = 0; i < 16; ++i)
    for (int64_t c = 0; c < 24; ++c) {
      if (i < 5) small["p"].at(0, 0, i, c) = in["p"].at(0, 0, i, c);
      if (i >= 5) in["p"].at(0, 0, i, c) = 0;
      counted["p"].at(0, 0, i, c) = in["p"].at(0, 0, i, c);
    }
  const Array out = run_whole(in, 0, {});
  EXPECT_TRUE(same_bits(out, run_whole(small, 0, {})));
  EXPECT_FALSE(same_bits(out, run_whole(counted, 0, {})));
}

}  // namespace
}  // namespace attnkit::test
