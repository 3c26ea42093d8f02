// cosformer against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include "reference.hpp"
#include "support/golden.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

double length(const std::vector<double>& totals, const std::vector<int32_t>& lengths, int64_t rows, int64_t b) {
  const auto row = static_cast<size_t>(b);
  if (!totals.empty()) return totals[row];
  return static_cast<double>(lengths.empty() ? rows : lengths[row]);
}

// joint: both over the larger of the lengths, the authors' cross attention.
WeightOf weights(bool joint) {
  return [joint](const Mechanism&, Inputs& in, const Scene& s, const Call& call) -> Weight {
    const Array &q = in["q"], &k = in["k"];
    return [&q, &k, s, call, joint](int64_t b, int64_t h, int64_t i, int64_t j) {
      double n = length(call.q_total, s.q_len, s.queries, b), m = length(call.k_total, s.k_len, s.keys, b);
      if (joint) n = m = std::max(n, m);
      return weight(row_of(q, b, h, i), row_of(k, b, h, j), i, j, n, m);
    };
  };
}

TEST(Cosformer, EqualsItsFloat64Form) {
  record_error(check_situations(plugin(), {}, weights(false), guard("clamp", 1e-6)));
}

TEST(Cosformer, ItsGradientEqualsCentralDifferences) {
  record_error(check_gradients(plugin()));
  check_gradients(plugin(), {{"guard", "add"}, {"eps", 0.1}, {"cross", "max"}});
}

TEST(Cosformer, HasTheAuthorsCrossAttention) {
  const Settings settings = {{"cross", "max"}, {"guard", "add"}, {"eps", 0.1}};
  check_situations(plugin(), settings, weights(true), guard("add", 0.1));
}

TEST(Cosformer, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("cosformer")) {
    const std::string kind = g.params["den"];
    const double eps = g.params["eps"], n = g.params["N"], m = g.params["M"];
    const auto of_rows = [n, m](const Row& q, const Row& k, int64_t i, int64_t j) { return weight(q, k, i, j, n, m); };
    Call call;
    call.q_total = {n};
    call.k_total = {m};
    // Beyond a length that is too short weights change sign: sums and denominators cancel, so o itself has lost the
    // digits that its terms have, and the error is measured against the size of those terms.
    const bool cancels = g.name.find("overlong") != std::string::npos;
    worst = std::max(worst, check_golden(plugin(), g, {{"guard", kind}, {"eps", eps}}, of_rows, of_rows,
                                         guard(kind, eps), call, nullptr, cancels));
  }
  record_error(worst);
}

TEST(Cosformer, HoldsPositionsAtThePredictedLengthIfAsked) {
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 1, 16, 16);
  const Mechanism saturated(plugin(), block, {{"beyond", "saturate"}});
  Inputs in(saturated, 1, 12, 10, 1);
  for (int64_t i = 8; i < 12; ++i)
    for (int64_t f = 0; f < 16; ++f) in["q"].at(0, 0, i, f) = in["q"].at(0, 0, 7, f);
  Call call;
  call.q_total = {8};
  call.k_total = {10};
  const Array out = run_whole(in, 0, call);
  for (int64_t i = 8; i < 12; ++i)
    for (int64_t c = 0; c < 16; ++c) EXPECT_EQ(out.at(0, 0, 7, c), out.at(0, 0, i, c));
}

TEST(Cosformer, AsksTheHostToStopAtTheLengthIfAsked) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 8, 8), {{"beyond", "error"}});
  const Planned plan(mech, make_request(1, 4, 4, ATTN_STREAM | ATTN_KNOWS_Q_TOTAL));
  EXPECT_EQ(static_cast<uint32_t>(ATTN_WITHIN_TOTAL), plan.info().flags);
}

TEST(Cosformer, RefusesWithoutTheLengthsItNeeds) {
  const Mechanism self(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 8, 8)),
      cross(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 8, 8)),
      encoder(plugin(), make_block(ATTN_ENCODER_SELF, true, 1, 8, 8));
  const auto request = [](uint32_t flags) { return make_request(1, 4, 4, flags); };
  for (const uint32_t flags : {0u, ATTN_STREAM}) {
    expect_refused(self, request(flags), "[length]");
    expect_refused(encoder, request(flags), "whole source length");
    EXPECT_NO_THROW(Planned(self, request(flags | ATTN_KNOWS_Q_TOTAL)));
  }
  EXPECT_NO_THROW(Planned(cross, request(0)));
  for (const uint32_t flags : {ATTN_PREFIX, ATTN_STREAM}) {
    expect_refused(cross, request(flags), "target length");
    expect_refused(cross, request(flags | ATTN_KNOWS_Q_TOTAL), "source length");
    EXPECT_NO_THROW(Planned(cross, request(flags | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL)));
  }
}

TEST(Cosformer, SharesHeadsOfKeys) { check_shared_keys(plugin()); }

}  // namespace
}  // namespace attnkit::test
