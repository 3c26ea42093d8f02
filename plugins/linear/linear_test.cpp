// linear against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>

#include "support/golden.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

double elu1(double x) { return x > 0 ? x + 1 : std::exp(x); }

double weight_of_rows(const std::vector<double>& q, const std::vector<double>& k, int64_t, int64_t) {
  double dot = 0;
  for (size_t f = 0; f < q.size(); ++f) dot += elu1(q[f]) * elu1(k[f]);
  return dot;
}

Weight weights(const Mechanism&, Inputs& in, const Scene&, const Call&) {
  const Array &q = in["q"], &k = in["k"];
  return [&q, &k](int64_t b, int64_t h, int64_t i, int64_t j) {
    double dot = 0;
    for (int64_t f = 0; f < q.width; ++f) dot += elu1(q.at(b, h, i, f)) * elu1(k.at(b, h, j, f));
    return dot;
  };
}

TEST(Linear, EqualsItsFloat64Form) {
  RecordProperty("error", std::to_string(1e9 * check_situations(plugin(), {}, weights, guard("add", 1e-6))) + "e-9");
}

TEST(Linear, HasThreeGuards) {
  check_situations(plugin(), {{"guard", "add"}, {"eps", 0.5}}, weights, guard("add", 0.5));
  check_situations(plugin(), {{"guard", "clamp"}, {"eps", 40.0}}, weights, guard("clamp", 40.0));
  check_situations(plugin(), {{"guard", "none"}}, weights, guard("none", 0));
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
  RecordProperty("error", std::to_string(1e9 * worst) + "e-9");
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
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16));
  Inputs padded(mech, 1, 12, 12, 1);
  for (const char* name : {"k", "v"})
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 7; j < 12; ++j)
        for (int64_t f = 0; f < 16; ++f) padded[name].at(0, h, j, f) = 0;
  Call call;
  call.k_len = {7};
  const Array got = run_whole(padded, 0, call), all = run_whole(padded, 0, {});
  EXPECT_GT(std::abs(got.at(0, 0, 0, 0) - all.at(0, 0, 0, 0)), 1e-3) << "zero keys would take weight";
  Inputs alone(mech, 1, 12, 7, 1);
  for (const char* name : {"q", "k", "v"})
    alone[name].set([&](int64_t b, int64_t h, int64_t i, int64_t c) { return padded[name].at(b, h, i, c); });
  EXPECT_TRUE(same_bits(got, run_whole(alone, 0, {})));
}

// Multiply-adds and elements counted one by one, the way the equation is written.
TEST(Linear, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, d = 24, e = 40, n = 7, m = 11;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, heads, d, e));
  uint64_t adds = 0;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t row = 0; row < n + m; ++row)
      for (int64_t f = 0; f < d; ++f) adds += static_cast<uint64_t>(e + 1);
  Inputs in(mech, 1, n, m, 1);
  const auto bytes = [&in](const char* name) {
    return static_cast<uint64_t>(in[name].heads * in[name].rows * in[name].width) * sizeof(float);
  };
  const attn_info whole = Planned(mech, make_request(1, n, m)).info();
  EXPECT_EQ(2 * adds, whole.flops);
  EXPECT_EQ(bytes("q") + bytes("k") + bytes("v"), whole.bytes_read);
  EXPECT_EQ(bytes("o"), whole.bytes_written);
  const uint64_t state = static_cast<uint64_t>(heads * (d * e + d)) * sizeof(float);
  const attn_info stream = Planned(mech, make_request(1, n, m, ATTN_STREAM, 4095)).info();
  EXPECT_EQ((state + 63) / 64 * 64, stream.state_bytes);
  EXPECT_EQ(whole.flops, stream.flops);
  EXPECT_EQ(whole.bytes_read + state, stream.bytes_read);
  EXPECT_EQ(whole.bytes_written + state, stream.bytes_written);
}

}  // namespace
}  // namespace attnkit::test
