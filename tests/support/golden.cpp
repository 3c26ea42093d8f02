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

std::vector<int64_t> Golden::seen() const {
  std::vector<int64_t> seen(q.size(), static_cast<int64_t>(k.size()));
  for (size_t i = 0; i < seen.size(); ++i) {
    if (causal) seen[i] = static_cast<int64_t>(i) + 1;
    if (!visible.empty()) seen[i] = visible[i];
  }
  return seen;
}

attn_block Golden::block() const {
  return make_block(role, causal, 1, static_cast<int32_t>(q[0].size()), static_cast<int32_t>(o[0].size()));
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
    g.out = c["out"];
    if (g.in.contains("Q")) g.q = g.in["Q"];
    if (g.in.contains("K")) g.k = visible_rows(g.in["K"], g.in);
    if (g.in.contains("V")) g.v = visible_rows(g.in["V"], g.in);
    if (g.out.contains("O")) g.o = g.out["O"];
    g.causal = g.params.value("causal", false);
    if (g.causal) g.role = ATTN_DECODER_SELF;
    if (g.params.contains("visible")) g.visible = g.params["visible"].get<std::vector<int32_t>>();
    cases.push_back(std::move(g));
  }
  if (cases.empty()) throw std::runtime_error("no case in " + path);
  return cases;
}

Truth truth_of(const Golden& g, bool rounds, const RowWeight& weight, const Denominator& denominator) {
  const Matrix q = rounds ? rounded(g.q) : g.q, k = rounds ? rounded(g.k) : g.k, v = rounds ? rounded(g.v) : g.v;
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  return oracle(
      g.scene(), [&](int64_t, int64_t, int64_t i, int64_t j) { return weight(q[at(i)], k[at(j)], i, j); },
      [&](int64_t, int64_t, int64_t j, int64_t c) { return v[at(j)][at(c)]; }, denominator);
}

Matrix rows_of(const Truth& truth) {
  Matrix rows(static_cast<size_t>(truth.scene.queries));
  for (int64_t i = 0; i < truth.scene.queries; ++i)
    for (int64_t c = 0; c < truth.scene.values; ++c) rows[static_cast<size_t>(i)].push_back(truth.at(0, 0, i, c));
  return rows;
}

double check_golden(const attn_plugin& plugin, const Golden& g, const Settings& settings, const RowWeight& weight,
                    const RowWeight& rounded_weight, const Denominator& denominator, Call call,
                    const std::function<void(Inputs&)>& prepare, bool may_cancel) {
  double largest = 1;
  for (const double x : flat(g.o)) largest = std::max(largest, std::abs(x));
  const double off = largest_difference(rows_of(truth_of(g, false, weight, denominator)), g.o);
  EXPECT_LE(off / largest, 1e-12) << g.name << ": the oracle differs from the golden output";

  const Mechanism mech(plugin, g.block(), settings);
  Inputs inputs(mech, 1, static_cast<int64_t>(g.q.size()), static_cast<int64_t>(g.k.size()), 1);
  put(g.q, inputs[g.q_port]);
  put(g.k, inputs[g.k_port]);
  put(g.v, inputs["v"]);
  if (prepare) prepare(inputs);
  call.visible = g.visible;
  const Array got = run_whole(inputs, g.visible.empty() ? 0 : ATTN_PREFIX, call);
  const double error = error_of(got, truth_of(g, true, rounded_weight, denominator), may_cancel);
  EXPECT_LE(error, kGate) << g.name;
  return error;
}

}  // namespace attnkit::test
