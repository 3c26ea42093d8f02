#include "support/golden.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

namespace attnkit::test {

namespace {

Matrix visible_rows(const Matrix& rows, const nlohmann::json& in) {
  if (!in.contains("kmask")) return rows;
  Matrix kept;
  for (size_t j = 0; j < rows.size(); ++j)
    if (in["kmask"][j].get<bool>()) kept.push_back(rows[j]);
  return kept;
}

double rounded(double x) { return static_cast<float>(x); }

Matrix rounded(Matrix rows) {
  for (auto& row : rows)
    for (double& x : row) x = rounded(x);
  return rows;
}

void copy(const Matrix& rows, Array& array) {
  array.set([&](int64_t, int64_t, int64_t i, int64_t c) {
    return static_cast<float>(rows[static_cast<size_t>(i)][static_cast<size_t>(c)]);
  });
}

Truth truth_of(const Golden& g, const Matrix& q, const Matrix& k, const Matrix& v, const RowWeight& weight,
               const Denominator& denominator) {
  return oracle(
      g.scene(),
      [&](int64_t, int64_t, int64_t i, int64_t j) {
        return weight(q[static_cast<size_t>(i)], k[static_cast<size_t>(j)], i, j);
      },
      [&](int64_t, int64_t, int64_t j, int64_t c) { return v[static_cast<size_t>(j)][static_cast<size_t>(c)]; },
      denominator);
}

}  // namespace

Scene Golden::scene() const {
  Scene s;
  s.queries = static_cast<int64_t>(q.size());
  s.keys = static_cast<int64_t>(k.size());
  s.values = static_cast<int64_t>(o[0].size());
  s.causal = causal;
  s.visible = visible;
  return s;
}

attn_block Golden::block() const {
  return make_block(causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, causal, 1, static_cast<int32_t>(q[0].size()),
                    static_cast<int32_t>(o[0].size()));
}

std::vector<Golden> golden(const std::string& kind) {
  const std::string path = std::string(ATTNKIT_GOLDEN_DIR) + "/" + kind + ".json";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<Golden> cases;
  for (const auto& c : nlohmann::json::parse(file)) {
    Golden g;
    g.name = c["name"];
    g.params = c["params"];
    g.in = c["in"];
    g.q = g.in["Q"];
    g.k = visible_rows(g.in["K"], g.in);
    g.v = visible_rows(g.in["V"], g.in);
    g.o = c["out"]["O"].get<Matrix>();
    g.causal = g.params.value("causal", false);
    if (g.params.contains("visible")) g.visible = g.params["visible"].get<std::vector<int32_t>>();
    cases.push_back(std::move(g));
  }
  if (cases.empty()) throw std::runtime_error("no case in " + path);
  return cases;
}

double check_golden(const attn_plugin& plugin, const Golden& g, const Settings& settings, const RowWeight& weight,
                    const RowWeight& rounded_weight, const Denominator& denominator, Call call,
                    const std::function<void(Inputs&)>& prepare, bool may_cancel) {
  const Truth exact = truth_of(g, g.q, g.k, g.v, weight, denominator);
  double largest = 1, worst = 0;
  for (const auto& row : g.o)
    for (double x : row) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < g.o.size(); ++i)
    for (size_t c = 0; c < g.o[i].size(); ++c)
      worst = std::max(worst, std::abs(exact.at(0, 0, static_cast<int64_t>(i), static_cast<int64_t>(c)) - g.o[i][c]));
  EXPECT_LE(worst / largest, 1e-12) << g.name << ": the oracle differs from the golden output";

  const Mechanism mech(plugin, g.block(), settings);
  Inputs inputs(mech, 1, exact.scene.queries, exact.scene.keys, 1);
  copy(g.q, inputs["q"]);
  copy(g.k, inputs["k"]);
  copy(g.v, inputs["v"]);
  if (prepare) prepare(inputs);
  call.visible = g.visible;
  const Array got = run_whole(inputs, g.visible.empty() ? 0 : ATTN_PREFIX, call);
  const double error =
      error_of(got, truth_of(g, rounded(g.q), rounded(g.k), rounded(g.v), rounded_weight, denominator), may_cancel);
  EXPECT_LE(error, kGate) << g.name;
  return error;
}

}  // namespace attnkit::test
