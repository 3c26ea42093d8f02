// leap against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>

#include "reference.hpp"
#include "support/golden.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

// The module of head h: its part of each tensor, or all of it when own is false.
Module module_of(Inputs& in, const std::string& side, int64_t d, int64_t h, bool own) {
  const auto list = [&](const char* name) {
    if (in.mech->find(side + name) < 0) return Row{};
    const Array& a = in[side + name];
    const int64_t count = own ? a.rows / static_cast<int64_t>(in.mech->block().heads) : a.rows;
    Row row;
    for (int64_t i = 0; i < count; ++i) row.push_back(a.at(0, 0, (own ? h * count : 0) + i, 0));
    return row;
  };
  Module m{{}, list("_b1"), list("_w2"), list("_b2")};
  const Row flat = list("_w1");
  for (size_t i = 0; i < flat.size(); i += static_cast<size_t>(d))
    m.w1.emplace_back(flat.begin() + static_cast<int64_t>(i), flat.begin() + static_cast<int64_t>(i) + d);
  return m;
}

// All rows of an input after ReLU, each with its proportion.
struct Rows {
  Rows(const Array& a, const std::vector<Module>& modules, double scale) : heads(a.heads), rows(a.rows) {
    for (int64_t b = 0; b < a.batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < rows; ++i) {
          const Row x = relu(row_of(a, b, h, i), scale);
          list.emplace_back(x, modules[static_cast<size_t>(h)](x));
        }
  }
  const std::pair<Row, double>& at(int64_t b, int64_t h, int64_t i) const {
    return list[static_cast<size_t>((b * heads + h) * rows + i)];
  }
  int64_t heads, rows;
  std::vector<std::pair<Row, double>> list;
};

WeightOf weights(bool scaled, bool own = false) {
  return [scaled, own](const Mechanism&, Inputs& in, const Scene&, const Call&) -> Weight {
    const Array &q = in["q"], &k = in["k"];
    std::vector<Module> q_modules, k_modules;
    for (int64_t h = 0; h < q.heads; ++h) {
      q_modules.push_back(module_of(in, "q", q.width, h, own));
      k_modules.push_back(module_of(in, "k", q.width, h, own));
    }
    const double scale = scaled ? 1 / std::sqrt(static_cast<double>(q.width)) : 1;
    const Rows a(q, q_modules, scale), b(k, k_modules, 1);
    return [a, b](int64_t batch, int64_t h, int64_t i, int64_t j) {
      const auto& [x, p] = a.at(batch, h, i);
      const auto& [y, r] = b.at(batch, h, j);
      return weight(x, p, y, r);
    };
  };
}

Module golden_module(const nlohmann::json& json, bool rounds) {
  Module m{json["W1"], json["b1"], {}, {}};
  if (!json["W2"].is_null()) {
    m.w2 = json["W2"][0].get<Row>();
    m.b2 = json["b2"].get<Row>();
  }
  return rounds ? Module{rounded(m.w1), rounded(m.b1), rounded(m.w2), rounded(m.b2)} : m;
}

void put(Inputs& in, const std::string& side, const Module& m) {
  test::put(flat(m.w1), in[side + "_w1"]);
  test::put(m.b1, in[side + "_b1"]);
  if (m.w2.empty()) return;
  test::put(m.w2, in[side + "_w2"]);
  test::put(m.b2, in[side + "_b2"]);
}

double check_golden_kind(const std::string& kind_of_case) {
  double worst = 0;
  for (const Golden& g : golden(kind_of_case)) {
    const std::string kind = g.params["den"];
    const double eps = g.params["eps"];
    const auto of_rows = [&g](bool rounds) -> RowWeight {
      const Module q = golden_module(g.in["pq"], rounds), k = golden_module(g.in["pk"], rounds);
      return [q, k](const Row& x, const Row& y, int64_t, int64_t) {
        const Row a = relu(x), b = relu(y);
        return weight(a, q(a), b, k(b));
      };
    };
    const auto inner = static_cast<int64_t>(g.in["pq"]["W1"].size()), d = static_cast<int64_t>(g.q[0].size());
    worst = std::max(worst, check_golden(plugin(), g, {{"guard", kind}, {"eps", eps}, {"factor", d / inner}},
                                         of_rows(false), of_rows(true), guard(kind, eps), {}, [&g](Inputs& in) {
                                           put(in, "q", golden_module(g.in["pq"], false));
                                           put(in, "k", golden_module(g.in["pk"], false));
                                         }));
  }
  return worst;
}

TEST(Leap, EqualsItsFloat64Form) { record_error(check_situations(plugin(), {}, weights(false), guard("clamp", 0.1))); }

TEST(Leap, ScalesQueriesBeforeTheModuleReadsThem) {
  check_situations(plugin(), {{"scale", "inverse_sqrt"}}, weights(true), guard("clamp", 0.1));
}

TEST(Leap, WorksWithAnyInnerWidth) {
  for (const int64_t factor : {1, 2})
    check_situations(plugin(), {{"factor", factor}}, weights(false), guard("clamp", 0.1));
}

TEST(Leap, GivesEachHeadItsOwnModules) {
  for (const int64_t factor : {1, 4})
    check_situations(plugin(), {{"shared", false}, {"factor", factor}}, weights(false, true), guard("clamp", 0.1));
  check_situations(plugin(), {{"shared", false}, {"scale", "inverse_sqrt"}}, weights(true, true), guard("clamp", 0.1));
}

// With one layer (r = 1) each head has a row of W1 and a bias.
TEST(Leap, GivesEachHeadItsOwnLayerWhenTheInnerWidthIsOne) {
  const auto block = make_block(ATTN_ENCODER_SELF, false, 3, 24, 16);
  const Mechanism mech(plugin(), block, {{"shared", false}, {"factor", int64_t{24}}});
  Inputs in(mech, 2, 20, 20, 1);
  const Scene scene{2, 3, 20, 20, 16, false, {}, {}, {}};
  const Truth truth = oracle(scene, weights(false, true)(mech, in, scene, {}), elements(in["v"]), guard("clamp", 0.1));
  EXPECT_LE(error_of(run_whole(in, 0, {}), truth), kGate);
}

// 2 (D r + 2 r + 1) numbers, once per block or once per head.
TEST(Leap, CountsItsParameters) {
  const int64_t heads = 3, d = 24, factor = 4, r = d / factor;
  for (const bool shared : {true, false}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, heads, d, 16),
                         {{"shared", shared}, {"factor", factor}});
    int64_t count = 0;
    for (const attn_port* port : mech.ports())
      if (port->kind == ATTN_LEARNED) count += Array::stored(*port).rows;
    EXPECT_EQ(2 * (d * r + 2 * r + 1) * (shared ? 1 : heads), count);
    const attn_port& w1 = *mech.ports()[static_cast<size_t>(mech.find("k_w1"))];
    EXPECT_EQ(shared ? 2 : 3, w1.ndim);
    EXPECT_EQ(shared ? r : heads, w1.shape[0]);
  }
}

// Equal modules in all heads are one shared pair, bit for bit; the state does not know the difference.
TEST(Leap, SharesWhatIsEqual) {
  const auto block = make_block(ATTN_DECODER_SELF, true, 3, 24, 16);
  const Mechanism one(plugin(), block), own(plugin(), block, {{"shared", false}});
  Inputs in(one, 2, 20, 20, 1), each(own, 2, 20, 20, 1);
  const Array different = run_whole(each, 0, {});
  for (const std::string side : {"q", "k"})
    for (const char* name : {"_w1", "_b1", "_w2", "_b2"}) {
      const Array& from = in[side + name];
      each[side + name].set([&from](int64_t, int64_t, int64_t i, int64_t) { return from.at(0, 0, i % from.rows, 0); });
    }
  EXPECT_TRUE(same_bits(run_whole(in, 0, {}), run_whole(each, 0, {})));
  EXPECT_FALSE(same_bits(different, run_whole(each, 0, {})));
  EXPECT_EQ(Planned(one, make_request(1, 1, 1, ATTN_STREAM)).info().state_bytes,
            Planned(own, make_request(1, 1, 1, ATTN_STREAM)).info().state_bytes);
}

TEST(Leap, EqualsTheGoldenCases) { record_error(check_golden_kind("leap")); }

TEST(Leap, EqualsTheGoldenWaitKCases) { check_golden_kind("leap_waitk"); }

TEST(Leap, HasGradients) {
  record_error(check_gradients(plugin()));
  check_gradients(plugin(), {{"scale", "inverse_sqrt"}, {"guard", "add"}});
}

TEST(Leap, HasGradientsOfEachHeadsOwnModules) {
  for (const int64_t factor : {2, 8}) check_gradients(plugin(), {{"shared", false}, {"factor", factor}});
}

// A module's tensors under their ports' names.
void add(ByPort& to, const std::string& side, const nlohmann::json& module) {
  to[side + "_w1"] = module["W1"];
  to[side + "_b1"] = {module["b1"].get<Row>()};
  to[side + "_w2"] = module["W2"];
  to[side + "_b2"] = {module["b2"].get<Row>()};
}

struct GoldenGradients {
  explicit GoldenGradients(const Golden& g)
      : mech(plugin(), g.block(),
             {{"guard", g.params["den"].get<std::string>()},
              {"eps", g.params["eps"].get<double>()},
              {"factor", static_cast<int64_t>(g.q[0].size() / g.in["pq"]["W1"].size())}}),
        inputs{{"q", g.q}, {"k", g.k}, {"v", g.v}} {
    for (const std::string side : {"q", "k"}) add(inputs, side, g.in["p" + side]);
    call.visible = g.visible;
  }
  double error(const Golden& g, const ByPort& gradients) const {
    return check_golden_gradients(mech, call, inputs, g.in["G"], gradients);
  }
  Mechanism mech;
  ByPort inputs;
  Call call;
};

TEST(Leap, HasTheGoldenGradients) {
  int count = 0;
  double worst = 0;
  for (const Golden& g : golden("leap")) {
    if (!g.out.contains("dQ")) continue;
    SCOPED_TRACE(g.name);
    ByPort gradients{{"q", g.out["dQ"]}, {"k", g.out["dK"]}, {"v", g.out["dV"]}};
    for (const std::string side : {"q", "k"}) add(gradients, side, g.out["g" + side]);
    worst = worse(worst, GoldenGradients(g).error(g, gradients));
    ++count;
  }
  EXPECT_EQ(21, count);
  record_error(worst);
}

// The gradients of rows x from those of their features (a cos, a sin), a = ReLU(x), angle = p pi / 2.
Matrix from_features(const Matrix& rows, const Module& m, const Matrix& features) {
  Matrix gradients;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row a = relu(rows[i]);
    const size_t d = a.size();
    const double p = m(a), angle = p * M_PI / 2, c = std::cos(angle), s = std::sin(angle);
    double turn = 0;
    for (size_t f = 0; f < d; ++f) turn += a[f] * (c * features[i][d + f] - s * features[i][f]);
    Row row(d);
    for (size_t f = 0; f < d; ++f) row[f] = c * features[i][f] + s * features[i][d + f];
    for (size_t r = 0; r < m.w1.size(); ++r)
      if (dot(m.w1[r], a) + m.b1[r] > 0)
        for (size_t f = 0; f < d; ++f) row[f] += turn * M_PI / 2 * p * (1 - p) * m.w2[r] * m.w1[r][f];
    for (size_t f = 0; f < d; ++f) row[f] *= rows[i][f] > 0;
    gradients.push_back(row);
  }
  return gradients;
}

TEST(Leap, HasTheGoldenWaitKGradients) {
  for (const Golden& g : golden("leap_waitk")) {
    const auto of = [&](const Matrix& rows, const char* module, const char* features) {
      return from_features(rows, golden_module(g.in[module], false), g.out[features]);
    };
    GoldenGradients(g).error(g, {{"q", of(g.q, "pq", "dFq")}, {"k", of(g.k, "pk", "dFk")}, {"v", g.out["dV"]}});
  }
}

TEST(Leap, HasOneLayerWhenTheInnerWidthIsOne) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 8, 8), {{"factor", int64_t{8}}});
  EXPECT_GE(mech.find("q_w1"), 0);
  EXPECT_GE(mech.find("k_b1"), 0);
  EXPECT_EQ(-1, mech.find("q_w2"));
  EXPECT_EQ(-1, mech.find("k_b2"));
  EXPECT_EQ(8u, mech.ports().size()) << "q, k, v, o and two tensors a side";
}

TEST(Leap, RefusesAFactorThatDoesNotDivide) {
  expect_refused(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 10, 8), {}, "factor", "factor");
}

TEST(Leap, FillsTheSameBytesOnEveryMachine) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 64, 64));
  Inputs in(mech, 1, 1, 1, 42), other(mech, 1, 1, 1, 43);
  const Array& w1 = in["q_w1"];
  const Moments of = moments(w1);
  EXPECT_LE(of.largest, 0.125);
  EXPECT_GE(of.largest, 0.124);
  EXPECT_NEAR(of.mean, 0, 0.01);
  EXPECT_FALSE(same_bits(w1, in["k_w1"]));
  EXPECT_FALSE(same_bits(w1, other["q_w1"]));
  EXPECT_EQ(0x1.28fa500000000p-6f, w1.at(0, 0, 0, 0));
  EXPECT_LE(std::abs(in["q_w2"].at(0, 0, 0, 0)), 0.25f);
}

TEST(Leap, SharesHeadsOfKeys) { check_shared_keys(plugin()); }

}  // namespace
}  // namespace attnkit::test
