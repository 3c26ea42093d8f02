// linear against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>

#include "reference.hpp"
#include "support/cost.hpp"
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

TEST(Linear, EqualsItsFloat64Form) { record_error(check_situations(plugin(), {}, weights, guard("add", 1e-6))); }

TEST(Linear, HasThreeGuards) {
  check_situations(plugin(), {{"guard", "add"}, {"eps", 0.5}}, weights, guard("add", 0.5));
  check_situations(plugin(), {{"guard", "clamp"}, {"eps", 40.0}}, weights, guard("clamp", 40.0));
  check_situations(plugin(), {{"guard", "none"}}, weights, guard("none", 0));
}

TEST(Linear, ItsGradientEqualsCentralDifferences) {
  record_error(check_gradients(plugin()));
  check_gradients(plugin(), {{"guard", "clamp"}, {"eps", 40.0}});
  check_gradients(plugin(), {{"guard", "none"}});
}

TEST(Linear, EqualsItsFloat64FormOnLargeAndSmallInputs) {
  const auto wide = [](Inputs& in) {
    for (const char* name : {"q", "k"})
      for (float& x : in[name].data()) x *= 20;
  };
  check_situations(plugin(), {}, weights, guard("add", 1e-6), wide);
}

TEST(Linear, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("elu1")) {
    const std::string kind = g.params["den"];
    const double eps = g.params["eps"];
    worst = std::max(worst, check_golden(plugin(), g, {{"guard", kind}, {"eps", eps}}, weight_of_rows, weight_of_rows,
                                         guard(kind, eps), {}));
  }
  record_error(worst);
}

// In float64 e^-100 is a number; in f32 all features of such a query vanish.
TEST(Linear, AQueryThatUnderflowsIsNanWithoutGuardAndZeroWithOne) {
  for (const char* kind : {"none", "add", "clamp"}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 24, 8), {{"guard", kind}});
    Inputs in(mech, 1, 2, 5, 1);
    for (float& x : in["q"].data()) x = -100;
    const float got = run_whole(in, 0, {}).at(0, 0, 1, 1);
    if (std::string(kind) == "none")
      EXPECT_TRUE(std::isnan(got));
    else
      EXPECT_EQ(0.0f, got) << kind;
  }
}

TEST(Linear, PaddedKeysCountForNothingThoughZeroMapsToOne) {
  check_zero_keys_take_weight(Mechanism(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16)));
}

TEST(Linear, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, d = 24, e = 40, n = 7, m = 11;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, heads, d, e));
  Inputs in(mech, 1, n, m, 1);
  const uint64_t state = static_cast<uint64_t>(heads * (d * e + d)) * sizeof(float);
  const Cost cost{linear_flops(heads, n + m, d, e), bytes_of(in, {"q", "k", "v"}), bytes_of(in, {"o"}), state};
  expect_cost(mech, make_request(1, n, m), cost);
  expect_cost(mech, make_request(1, n, m, ATTN_STREAM, 4095), cost);
}

TEST(Linear, SharesHeadsOfKeys) { check_shared_keys(plugin()); }

}  // namespace
}  // namespace attnkit::test
