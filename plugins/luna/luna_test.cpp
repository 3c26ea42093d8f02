// luna against its own float64 form, called through the ABI, and what it says of itself.
#include <gtest/gtest.h>

#include <optional>

#include "reference.hpp"
#include "support/cost.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"
#include "support/stream.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

using Aux = std::map<std::string, Array>;

// Rows [0, count) of all heads of one batch row, heads beside each other.
Matrix rows_of(const Array& a, int64_t b, int64_t count) {
  Matrix rows(static_cast<size_t>(count));
  for (int64_t h = 0; h < a.heads; ++h)
    for (int64_t i = 0; i < count; ++i)
      for (const double x : row_of(a, b, h, i)) rows[static_cast<size_t>(i)].push_back(x);
  return rows;
}

Row vector_of(Inputs& in, const char* name) {
  const auto& all = in[name].data();
  return {all.begin(), all.begin() + in[name].rows};
}

// y = x W + b of a stored W [out][in].
Affine affine(Inputs& in, const std::string& name, int64_t width) {
  Affine f{Matrix(static_cast<size_t>(width)), vector_of(in, (name + "_bias").c_str())};
  const Array& w = in[name + "_weight"];
  for (int64_t i = 0; i < width; ++i)
    for (int64_t o = 0; o < static_cast<int64_t>(f.b.size()); ++o)
      f.w[static_cast<size_t>(i)].push_back(w.at(0, 0, o * width + i, 0));
  return f;
}

struct Options {
  bool tied = true, contextual = true, dynamic = true, without_aux = false;
  int64_t pheads = 0;
  std::string activation = "log2";
  Settings settings() const {
    return {{"tied", tied},
            {"contextual", contextual},
            {"dynamic", dynamic},
            {"pheads", pheads},
            {"activation", activation}};
  }
};

// The rows of P that batch row b starts from; keys: of the row.
Matrix start(Inputs& in, const Options& options, int64_t b, int64_t keys) {
  const Array& learned = in["p_start"];
  const int64_t width = in.mech->block().d_model, l = learned.rows / width;
  const bool causal = in.mech->block().causal != 0;
  const int64_t count = keys == 0 ? 0 : options.dynamic && !causal ? std::min(l, keys) : l;
  if (options.contextual && !options.without_aux) return rows_of(in["p"], b, count);
  Matrix p;
  for (int64_t i = 0; i < count; ++i) {
    p.emplace_back();
    for (int64_t c = 0; c < width; ++c) p.back().push_back(learned.at(0, 0, i * width + c, 0));
  }
  return p;
}

Packed truth_of(Inputs& in, const Options& options, int64_t b, int64_t queries, int64_t keys) {
  const attn_block& block = in.mech->block();
  const int64_t width = block.d_model;
  const Matrix p = start(in, options, b, keys), q = rows_of(in["q"], b, queries), pk = rows_of(in["pk"], b, keys);
  Weights weights{affine(in, "pq", width), {}, {}, {}, {}};
  if (block.causal) {
    Packed result{Matrix(static_cast<size_t>(queries)), {}, {}};
    const Matrix pq = project(p, weights.pq);
    for (int64_t h = 0; h < block.heads && queries > 0; ++h) {
      Matrix own;
      const int64_t d = width / block.heads;
      for (const auto& row : pq) own.emplace_back(row.begin() + h * d, row.begin() + (h + 1) * d);
      const Matrix o = causal(own, test::rows_of(in["q"], b, h, queries), test::rows_of(in["k"], b, h, keys),
                              test::rows_of(in[options.tied ? "k" : "v"], b, h, keys),
                              test::rows_of(in["pk"], b, h, keys), options.activation);
      for (size_t i = 0; i < o.size(); ++i) result.o[i].insert(result.o[i].end(), o[i].begin(), o[i].end());
    }
    return result;
  }
  weights.k = affine(in, "k", width);
  weights.v = options.tied ? weights.k : affine(in, "v", width);
  if (options.contextual) weights.scale = vector_of(in, "norm_weight"), weights.shift = vector_of(in, "norm_bias");
  return packed(p, q, pk, options.tied ? pk : rows_of(in["pv"], b, keys), weights, block.heads,
                static_cast<size_t>(options.pheads ? options.pheads : block.heads));
}

int64_t length_of(const std::vector<int32_t>& lengths, int64_t b, int64_t all) {
  return lengths.empty() ? all : lengths[static_cast<size_t>(b)];
}

// Numbers that `want` has not are to be zeros.
void compare(const Array& got, int64_t b, const Matrix& want, Ratio& ratio) {
  for (int64_t i = 0; i < got.rows; ++i)
    for (int64_t h = 0; h < got.heads; ++h)
      for (int64_t c = 0; c < got.width; ++c) {
        const auto row = static_cast<size_t>(i);
        const bool has = row < want.size() && !want[row].empty();
        ratio.add(got.at(b, h, i, c), has ? want[row][static_cast<size_t>(h * got.width + c)] : 0);
      }
}

// Holds one whole run, and P' where it gives one, against the float64 form.
double check(Inputs& in, const Options& options, Call call = {}) {
  Aux aux;
  call.without_aux = options.without_aux;
  const Array got = run_whole(in, 0, call, 1, &aux);
  Ratio o, p;
  for (int64_t b = 0; b < got.batch; ++b) {
    const Packed want =
        truth_of(in, options, b, length_of(call.q_len, b, got.rows), length_of(call.k_len, b, in["pk"].rows));
    compare(got, b, want.o, o);
    if (aux.contains("p")) compare(aux.at("p"), b, want.p, p);
  }
  const double worst = worse(o(), p());
  EXPECT_LE(worst, kGate);
  EXPECT_EQ(aux.contains("p"), options.contextual && !in.mech->block().causal);
  return worst;
}

double check(const Options& options, const std::function<void(Inputs&)>& prepare = nullptr) {
  const auto allowed = [&](const Situation& s) { return !s.prefix && !(s.block.causal && options.pheads); };
  return worst_situation(allowed, [&](const Situation& s) {
    const Mechanism mech(plugin(), s.block, options.settings());
    Inputs in(mech, s.batch, s.queries, s.keys, 3);
    if (in.mech->find("norm_weight") >= 0) {
      in["norm_weight"].randomize(8);
      in["norm_bias"].randomize(9);
    }
    if (prepare) prepare(in);
    return check(in, options, {.q_len = s.q_len, .k_len = s.k_len});
  });
}

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

// Projections by outputs, packing by rows of P, unpacking by queries.
TEST(Luna, SharesTheStagesOfOneHead) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 1, 64, 64), {{"projection", int64_t{40}}});
  EXPECT_EQ((std::vector<int64_t>{2, 3, 2, 8}), check_pieces(mech, 512));
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
  test::put(flat(transposed(f.w)), in[name + "_weight"]);
  test::put(f.b, in[name + "_bias"]);
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
    for (const auto& [name, rows] : Ports{{"p", p}, {"q", q}, {"pk", pk}, {"pv", pv}}) test::put(rows, in[name]);
    for (const auto& [name, f] : std::map<std::string, Affine>{{"pq", weights.pq}, {"k", weights.k}, {"v", weights.v}})
      put(f, in, name);
    worst = worse(worst, check(in, options));
  }
  record_error(worst);
}

// Their q and pq are scaled already; here the plugin does that, with P as pq and the identity for its projection.
struct GoldenCausal {
  explicit GoldenCausal(const Golden& g)
      : q(g.in["q"]), pq(g.in["pq"]), root(std::sqrt(static_cast<double>(q[0].size()))) {
    const std::string act = g.params["act"];
    options.activation = act == "softplus_log2" ? "log2" : act == "elu" ? "elu1" : act;
    for (Matrix* m : {&q, &pq}) *m = scaled(*m, root);
    const size_t d = q[0].size();
    Matrix identity(d, Row(d));
    for (size_t i = 0; i < d; ++i) identity[i][i] = 1;
    inputs = {{"p", pq}, {"q", q}, {"pq_weight", identity}, {"pq_bias", {Row(d)}}};
    for (const char* name : {"k", "v", "pk"}) inputs[name] = g.in[name].get<Matrix>();
    Settings settings = options.settings();
    settings["projection"] = static_cast<int64_t>(pq.size());
    const auto width = static_cast<int32_t>(d);
    mech.emplace(plugin(), make_block(ATTN_DECODER_SELF, true, 1, width, width), settings);
  }
  static Matrix scaled(Matrix rows, double by) {
    for (auto& row : rows)
      for (double& x : row) x *= by;
    return rows;
  }
  Options options{.tied = false};
  Matrix q, pq;
  double root;
  ByPort inputs;
  std::optional<Mechanism> mech;
};

TEST(Luna, EqualsTheGoldenCausalCases) {
  double worst = 0;
  for (const Golden& g : golden("luna_causal")) {
    const GoldenCausal c(g);
    const Matrix k = g.in["k"], v = g.in["v"], pk = g.in["pk"];
    EXPECT_LE(largest_difference(causal(c.pq, c.q, k, v, pk, c.options.activation), g.o), 1e-12) << g.name;
    const auto rows = static_cast<int64_t>(k.size());
    Inputs in(*c.mech, 1, rows, rows, 1);
    for (const auto& [name, numbers] : c.inputs)
      name.starts_with("pq_") ? test::put(flat(numbers), in[name]) : test::put(numbers, in[name]);
    worst = worse(worst, check(in, c.options));
  }
  record_error(worst);
}

TEST(Luna, HasTheGoldenGradients) {
  double worst = 0;
  for (const Golden& g : golden("luna_causal")) {
    SCOPED_TRACE(g.name);
    const GoldenCausal c(g);
    ByPort gradients{{"q", GoldenCausal::scaled(g.out["dq"], 1 / c.root)},
                     {"p", GoldenCausal::scaled(g.out["dpq"], 1 / c.root)}};
    for (const char* name : {"k", "v", "pk"}) gradients[name] = g.out[std::string("d") + name].get<Matrix>();
    worst = worse(worst, check_golden_gradients(*c.mech, {}, c.inputs, g.in["G"], gradients));
  }
  record_error(worst);
}

// Norms that are not the identity.
double check_training(const Options& options, int64_t l = 16) {
  Settings settings = options.settings();
  settings["projection"] = l;
  return check_gradients(plugin(), settings,
                         {.prepare =
                              [](Inputs& in) {
                                if (in.mech->find("norm_weight") < 0) return;
                                in["norm_weight"].randomize(8);
                                in["norm_bias"].randomize(9);
                              },
                          .allowed = [&](const Situation& s) { return !(s.block.causal && options.pheads); }});
}

TEST(Luna, HasGradients) { record_error(check_training(Options{})); }

TEST(Luna, HasGradientsUntied) { record_error(check_training({.tied = false, .activation = "softplus"})); }

TEST(Luna, HasGradientsInEveryOption) {
  check_training({.contextual = false, .activation = "elu1"}, 5);
  check_training({.dynamic = false});
  check_training({.tied = false, .contextual = false, .pheads = 1}, 17);
}

// Queries and keys in several blocks; keys that end before the queries; queries that begin after keys.
TEST(Luna, HasGradientsInSeveralBlocks) {
  for (const bool is_causal : {false, true}) {
    const Mechanism mech(plugin(), make_block(is_causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, is_causal, 2, 8, 8),
                         {{"tied", false}, {"projection", int64_t{20}}});
    Inputs in(mech, 2, 150, 150, 1);
    check_gradients(in, 0, {.q_len = {150, 130}, .k_len = {90, 150}}, false);
    check_gradients(in, 0, {.q_pos = {70, 3}}, false);
  }
}

TEST(Luna, GivesRowsOfPThatItLeavesOutNoGradient) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 8, 8));
  Inputs in(mech, 1, 20, 20, 1);
  for (int64_t i = 5; i < 16; ++i)
    for (int64_t c = 0; c < 16; ++c) in["p"].at(0, 0, i, c) = 0;
  const auto grads = backward(in, 0, {});
  const Array& p = grads[static_cast<size_t>(mech.find("p"))];
  for (int64_t i = 0; i < 16; ++i)
    for (int64_t c = 0; c < 16; ++c) EXPECT_EQ(i >= 5, p.at(0, 0, i, c) == 0) << i;
}

TEST(Luna, APThatIsNotThereGetsAGradientOfZeros) {
  for (const bool is_causal : {false, true}) {
    const Mechanism mech(plugin(), make_block(is_causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, is_causal, 2, 8, 8));
    Inputs in(mech, 1, 9, 9, 1);
    Call call;
    call.without_aux = true;
    Training<float> training(in, 0, call);
    Gradients<float> grads = training.gradients();
    Array& p = grads[static_cast<size_t>(mech.find("p"))];
    p = in["p"];
    training.backward(grads);
    for (int64_t i = 0; i < p.rows; ++i)
      for (int64_t c = 0; c < p.width; ++c) EXPECT_EQ(0, p.at(0, 0, i, c)) << i;
  }
}

TEST(Luna, SavesAsMuchWhateverTheLength) {
  const auto saved = [](bool is_causal, bool tied, int64_t n) {
    const Mechanism mech(plugin(), make_block(is_causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF, is_causal, 2, 8, 8),
                         {{"tied", tied}});
    return Planned(mech, make_request(3, n, n, ATTN_TRAIN)).info().saved_bytes;
  };
  for (const int64_t n : {10, 1000}) {
    EXPECT_EQ(3u * 4 * (16 * (5 * 16 + 2 * 2)), saved(false, true, n)) << "pq, Y, its sums and keys, P', m and totals";
    EXPECT_EQ(3u * 4 * (16 * (6 * 16 + 2 * 2)), saved(false, false, n)) << "values besides";
    EXPECT_EQ(3u * 4 * (16 * 2 * 16 + 16), saved(true, true, n)) << "pq, sums of keys, and how many rows count";
  }
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

TEST(Luna, CausalBlocksTakePAndGiveNone) {
  const auto count = [](const Mechanism& m, uint32_t kind) {
    return std::ranges::count_if(m.ports(), [kind](const attn_port* p) { return p->kind == kind; });
  };
  const Mechanism causal(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 8, 8)),
      both(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 8, 8)),
      own(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 8, 8), {{"contextual", false}}),
      encoder(plugin(), make_block(ATTN_ENCODER_SELF, true, 2, 8, 8));
  EXPECT_EQ(1, count(causal, ATTN_AUX_IN));
  EXPECT_EQ(0, count(causal, ATTN_AUX_OUT));
  EXPECT_EQ(1, count(both, ATTN_AUX_IN));
  EXPECT_EQ(1, count(both, ATTN_AUX_OUT));
  EXPECT_EQ(0, count(own, ATTN_AUX_IN) + count(own, ATTN_AUX_OUT));
  EXPECT_EQ(0, count(encoder, ATTN_AUX_IN)) << "P of the encoder's other blocks would show it the future";
  EXPECT_EQ(ATTN_PER_MODEL, both.ports()[static_cast<size_t>(both.find("p_start"))]->flags);
}

// The paper's sizes of a block, in squares of d_model, biases and norms aside: Table 4 follows from them.
TEST(Luna, HasTheProjectionsOfThePaper) {
  const auto squares = [](bool is_causal, bool tied) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, is_causal, 2, 8, 8), {{"tied", tied}});
    return std::ranges::count_if(mech.ports(), [](const attn_port* p) {
      return p->kind <= ATTN_OUTPUT || (p->kind == ATTN_LEARNED && p->ndim == 2 && p->shape[0] == 16 &&
                                        p->shape[1] == 16 && p->name != std::string("p_start"));
    });
  };
  EXPECT_EQ(5, squares(false, true));
  EXPECT_EQ(7, squares(false, false));
  EXPECT_EQ(5, squares(true, true));
  EXPECT_EQ(6, squares(true, false));
}

TEST(Luna, Refuses) {
  const auto encoder = make_block(ATTN_ENCODER_SELF, false, 2, 8, 8);
  const auto decoder = make_block(ATTN_DECODER_SELF, true, 2, 8, 8);
  const Mechanism self(plugin(), encoder), cross(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 8, 8));
  const auto request = [](uint32_t flags) { return make_request(1, 4, 4, flags); };
  expect_refused(plugin(), encoder, {{"pheads", int64_t{3}}}, "pheads is 3 and d_model 16", "pheads");
  expect_refused(plugin(), decoder, {{"pheads", int64_t{4}}}, "pheads is 4 in a causal block", "pheads");
  expect_refused(self, request(ATTN_STREAM), "cannot stream");
  expect_refused(cross, request(ATTN_PREFIX), "pack anew for every length");
  expect_refused(cross, request(ATTN_STREAM), "a source that grows would change it");
  EXPECT_NO_THROW(Planned(cross, request(ATTN_STREAM | ATTN_KNOWS_K_TOTAL)));
  const Mechanism wide(plugin(), make_block(ATTN_ENCODER_SELF, false, 1, 65536, 65536),
                       {{"projection", int64_t{4096}}});
  expect_refused([&] { Planned(wide, make_request(1 << 18, 3, 1)); },
                 "a run of batch 262144, 3 queries and 1 keys counts more operations", -1, ATTN_INVALID);
}

TEST(Luna, FillsAsThePaperInitialises) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 4, 32, 64), {{"tied", false}});
  Inputs in(mech, 1, 1, 1, 5);
  EXPECT_NEAR(1, moments(in["p_start"]).square, 0.1) << "N(0, 1/D) times sqrt D";
  for (const auto& [name, out] : std::map<const char*, int>{{"pq_weight", 128}, {"k_weight", 128}, {"v_weight", 256}}) {
    const double bound = std::sqrt(6.0 / (128 + out)) / std::sqrt(2.0);
    const Moments of = moments(in[name]);
    EXPECT_NEAR(bound * bound / 3, of.square, bound * bound / 60) << name;
    EXPECT_LE(of.largest, bound * 1.000001) << name;
    EXPECT_GE(of.largest, bound * 0.99) << name;
  }
  EXPECT_LE(moments(in["pq_bias"]).largest, 1 / std::sqrt(128.0));
  EXPECT_GE(moments(in["pq_bias"]).largest, 0.9 / std::sqrt(128.0));
  for (const double x : vector_of(in, "norm_weight")) EXPECT_EQ(1, x);
  for (const double x : vector_of(in, "norm_bias")) EXPECT_EQ(0, x);
  EXPECT_EQ(0x1.880652p-3f, in["p_start"].at(0, 0, 0, 0)) << "the same bytes everywhere";
  EXPECT_EQ(-0x1.79acfep-4f, in["pq_weight"].at(0, 0, 7, 0));
}

TEST(Luna, StartsFromTheSamePInEveryBlock) {
  const Mechanism both(plugin(), make_block(ATTN_ENCODER_SELF, false, 4, 32, 64));
  Inputs in(both, 1, 1, 1, 5);
  for (const bool is_causal : {false, true})
    for (const bool tied : {false, true}) {
      const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, is_causal, 4, 32, 64), {{"tied", tied}});
      Inputs other(mech, 1, 1, 1, 5);
      EXPECT_TRUE(same_bits(in["p_start"], other["p_start"])) << is_causal << tied;
    }
}

TEST(Luna, RefusesAPOfAnotherBatch) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 8, 8));
  Inputs in(mech, 2, 4, 4, 1);
  in["p"] = Array(1, 1, 16, 16);
  expect_refused([&] { run_whole(in, 0, {}); }, "the tensor of port \"p\" differs", mech.find("p"), ATTN_INVALID);
}

// Multiply-adds counted one by one, the way the equations are written; 5 flops for each number of a softmax.
uint64_t count_flops(int64_t heads, int64_t d, int64_t values, int64_t l, int64_t n, int64_t m, const Options& options,
                     bool is_causal, bool projects) {
  const int64_t width = heads * d, pheads = options.pheads ? options.pheads : heads;
  uint64_t adds = 0, exponentials = 0;
  for (int64_t r = 0; r < l; ++r) {
    for (int64_t j = 0; j < m; ++j) {
      for (int64_t c = 0; c < width; ++c) adds += 2;  // a score and a sum
      for (int64_t c = 0; c < heads * values && is_causal && !options.tied; ++c) ++adds;
      for (int64_t h = 0; h < pheads && !is_causal; ++h) ++exponentials;
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < width; ++c) ++adds;
      for (int64_t c = 0; c < heads * values; ++c) ++adds;
      for (int64_t h = 0; h < heads; ++h) ++exponentials;
    }
    int64_t columns = projects ? width : 0;
    if (!is_causal && projects) columns += width + (options.tied ? 0 : heads * values);
    for (int64_t c = 0; c < width * columns; ++c) ++adds;
  }
  return 2 * adds + 5 * exponentials;
}

TEST(Luna, DeclaresTheWorkAndStateThatItHas) {
  const int64_t heads = 3, d = 8, e = 10, l = 16, n = 7, m = 11, batch = 2;
  for (const bool is_causal : {false, true})
    for (const bool tied : {false, true})
      for (const bool contextual : {false, true}) {
        const Options options{.tied = tied, .contextual = contextual, .pheads = is_causal ? 0 : 6};
        const int64_t values = tied ? d : e, width = heads * d;
        const Mechanism mech(plugin(),
                             make_block(is_causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, is_causal, heads,
                                        static_cast<int32_t>(d), static_cast<int32_t>(e)),
                             options.settings());
        const uint32_t stream = ATTN_STREAM | ATTN_KNOWS_K_TOTAL;
        const auto flops = [&](const attn_request& r) { return Planned(mech, r).info().flops / batch; };
        const auto counted = [&](int64_t keys, bool projects) {
          return count_flops(heads, d, values, l, n, keys, options, is_causal, projects);
        };
        EXPECT_EQ(counted(m, true), flops(make_request(batch, n, m)));
        EXPECT_EQ(counted(m, true), flops(make_request(batch, n, m, stream)));
        EXPECT_EQ(counted(m, !is_causal), flops(make_request(batch, n, m, stream, 30)));
        EXPECT_EQ(counted(0, false), flops(make_request(batch, n, 0, stream, 30)));
        int64_t state = is_causal ? 2 * l * width + (tied ? 0 : l * heads * e) + 1
                                  : 2 * l * width + 2 * l * 6 + (tied ? 0 : l * heads * e) + contextual * l * width;
        EXPECT_EQ(state_row(static_cast<uint64_t>(state * 4)),
                  Planned(mech, make_request(batch, n, m, stream)).info().state_bytes);
      }
}

// Every tensor that a whole run touches, once.
TEST(Luna, DeclaresTheBytesThatItReadsAndWrites) {
  for (const bool is_causal : {false, true})
    for (const bool tied : {false, true})
      for (const bool contextual : {false, true}) {
        const Mechanism mech(plugin(),
                             make_block(is_causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF, is_causal, 3, 8, 10),
                             {{"tied", tied}, {"contextual", contextual}});
        Inputs in(mech, 2, 7, 11, 1);
        uint64_t read = 0, written = 0;
        for (size_t i = 0; i < in.arrays.size(); ++i) {
          const Array& a = in.arrays[i];
          const auto floats = static_cast<uint64_t>(a.batch * a.heads * a.rows * a.width);
          if (is_given(*mech.ports()[i]))
            written += floats;
          else if (!contextual || mech.ports()[i]->name != std::string("p_start"))
            read += floats;
        }
        const attn_info info = Planned(mech, make_request(2, 7, 11)).info();
        EXPECT_EQ(4 * read, info.bytes_read) << is_causal << tied << contextual;
        EXPECT_EQ(4 * written, info.bytes_written) << is_causal << tied << contextual;
        if (!is_causal) continue;
        const attn_info stream = Planned(mech, make_request(2, 7, 11, ATTN_STREAM, 5)).info();
        const uint64_t state = 2 * (16 * (2 * 24 + (tied ? 0 : 30)) + 1);
        uint64_t taken = 0;
        for (size_t i = 0; i < in.arrays.size(); ++i)
          if (mech.ports()[i]->kind <= ATTN_KEY)
            taken += static_cast<uint64_t>(2 * in.arrays[i].heads * in.arrays[i].rows * in.arrays[i].width);
        EXPECT_EQ(4 * (taken + state), stream.bytes_read) << "P and its projection are read at the start only";
        EXPECT_EQ(4 * (written + state), stream.bytes_written);
      }
}

}  // namespace
}  // namespace attnkit::test
