// relu against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>

#include "reference.hpp"
#include "support/golden.hpp"
#include "support/gradient.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

double weight_of_rows(const Row& q, const Row& k, int64_t, int64_t) { return weight(q, k); }

Weight weights(const Mechanism&, Inputs& in, const Scene&, const Call&) {
  const Array &q = in["q"], &k = in["k"];
  return
      [&q, &k](int64_t b, int64_t h, int64_t i, int64_t j) { return weight(row_of(q, b, h, i), row_of(k, b, h, j)); };
}

// A row whose weights all vanish is not a matter of rounding: keep such rows out of tests that have no guard.
void positive(Inputs& in) {
  for (float& x : in["q"].data()) x = std::abs(x);
}

TEST(Relu, EqualsItsFloat64Form) { record_error(check_situations(plugin(), {}, weights, guard("clamp", 1e-6))); }

TEST(Relu, HasThreeGuards) {
  check_situations(plugin(), {{"guard", "add"}, {"eps", 0.5}}, weights, guard("add", 0.5));
  check_situations(plugin(), {{"guard", "clamp"}, {"eps", 3.0}}, weights, guard("clamp", 3.0));
  check_situations(plugin(), {{"guard", "none"}}, weights, guard("none", 0), positive);
}

TEST(Relu, HasGradients) {
  record_error(check_gradients(plugin()));
  check_gradients(plugin(), {{"guard", "add"}, {"eps", 0.5}, {"scale", "inverse_sqrt"}});
  check_gradients(plugin(), {{"guard", "clamp"}, {"eps", 3.0}});
  check_gradients(plugin(), {{"guard", "none"}}, {.prepare = positive});
}

TEST(Relu, SharesTheColumnsOfOneHead) {
  for (const bool causal : {true, false}) {
    const attn_block block = make_block(causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF, causal, 1, 64, 140);
    EXPECT_EQ(std::vector<int64_t>{2}, check_pieces(Mechanism(plugin(), block, {}), 512));
    EXPECT_EQ(std::vector<int64_t>{}, check_pieces(Mechanism(plugin(), block, {}), 511));
  }
}

TEST(Relu, ScalesQueriesIfAsked) {
  // The scale matters under a guard alone: with `add` it is the same as an eps that is larger by D^1/2.
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 2, 16, 8);
  const Mechanism scaled(plugin(), block, {{"scale", "inverse_sqrt"}, {"guard", "add"}, {"eps", 1.0}});
  const Mechanism plain(plugin(), block, {{"guard", "add"}, {"eps", 4.0}});
  Inputs a(scaled, 1, 9, 20, 1), b(plain, 1, 9, 20, 1);
  EXPECT_LE(rms_ratio(run_whole(a, 0, {}), run_whole(b, 0, {})), 1e-6);
}

TEST(Relu, AnAllNegativeQueryIsNanWithoutGuardAndZeroWithOne) {
  for (const char* kind : {"none", "add", "clamp"}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 8, 8), {{"guard", kind}});
    Inputs in(mech, 1, 2, 5, 1);
    for (float& x : in["q"].data()) x = -std::abs(x);
    const float got = run_whole(in, 0, {}).at(0, 0, 1, 1);
    if (std::string(kind) == "none")
      EXPECT_TRUE(std::isnan(got));
    else
      EXPECT_EQ(0.0f, got) << kind;
  }
}

TEST(Relu, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("relu")) {
    const std::string kind = g.params["den"];
    const double eps = g.params["eps"];
    worst = std::max(worst, check_golden(plugin(), g, {{"guard", kind}, {"eps", eps}}, weight_of_rows, weight_of_rows,
                                         guard(kind, eps), {}));
  }
  record_error(worst);
}

TEST(Relu, CountsItsStateAndWork) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 8, 64, 64));
  const Planned plan(mech, make_request(1, 1, 1, ATTN_STREAM, 4095));
  EXPECT_EQ(8u * 64 * 65 * 4, plan.info().state_bytes);
  EXPECT_EQ(8u * 2 * 64 * 65 * 2, plan.info().flops);
}

TEST(Relu, SharesHeadsOfKeys) { check_shared_keys(plugin()); }

}  // namespace
}  // namespace attnkit::test
