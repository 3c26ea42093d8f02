// The distribution of omega, its estimate of exp, and the cost of a run.
#include <gtest/gtest.h>

#include <cmath>

#include "reference.hpp"
#include "support/cost.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

Matrix filled(uint64_t seed, int64_t m, int32_t d, const char* scaling) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, d, 4),
                       {{"features", m}, {"scaling", scaling}});
  return omega_of(Inputs(mech, 1, 1, 1, seed)["omega"], d);
}

TEST(PerformerOmega, IsMadeOfOrthogonalBlocks) {
  for (const char* scaling : {"gaussian", "sqrt_d"}) {
    const Matrix w = filled(1, 40, 16, scaling);  // two blocks and a half
    for (size_t a = 0; a < 40; ++a)
      for (size_t b = a + 1; b < 40 && b / 16 == a / 16; ++b) EXPECT_NEAR(0, dot(w[a], w[b]), 1e-5);
    EXPECT_GT(std::abs(dot(w[0], w[16])), 1e-3) << "blocks are independent";
  }
}

TEST(PerformerOmega, HasTheNormsThatScalingSays) {
  double sum = 0, squares = 0;
  for (const Row& w : filled(1, 1600, 16, "gaussian")) {
    sum += dot(w, w);
    squares += dot(w, w) * dot(w, w);
  }
  const double mean = sum / 1600, variance = squares / 1600 - mean * mean;
  EXPECT_NEAR(16, mean, 4 * std::sqrt(32.0 / 1600));  // chi squared with 16 degrees: mean 16, variance 32
  EXPECT_NEAR(32, variance, 8);
  for (const Row& w : filled(1, 100, 16, "sqrt_d")) EXPECT_NEAR(16, dot(w, w), 1e-4);
}

TEST(PerformerOmega, HasStandardNormalElements) {
  Row moments(4);
  const Matrix w = filled(7, 4000, 8, "gaussian");
  for (const Row& row : w)
    for (const double x : row)
      for (int p = 0; p < 4; ++p) moments[static_cast<size_t>(p)] += std::pow(x, p + 1) / 32000;
  EXPECT_NEAR(0, moments[0], 0.03);
  EXPECT_NEAR(1, moments[1], 0.04);
  EXPECT_NEAR(0, moments[2], 0.12);
  EXPECT_NEAR(3, moments[3], 0.3);
}

TEST(PerformerOmega, IsTheSameOnEveryMachine) {
  const Matrix w = filled(1, 3, 4, "gaussian"), other = filled(2, 3, 4, "gaussian");
  const float known[] = {0x1.322ff6p-2f, 0x1.e646e4p-1f, -0x1.f358d2p-2f, -0x1.304926p-1f};
  for (size_t f = 0; f < 4; ++f) {
    EXPECT_EQ(known[f], static_cast<float>(w[2][f])) << std::hexfloat << w[2][f];
    EXPECT_NE(w[2][f], other[2][f]);
  }
}

// The plugin's own phi(q) . phi(k): with one key and v = 1, a clamp far above the denominator gives the weight itself.
double estimate(uint64_t seed, int64_t m, const Row& q, const Row& k) {
  const auto d = static_cast<int32_t>(q.size());
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, d, 1),
                       {{"stabiliser", "fixed"}, {"features", m}, {"guard", "clamp"}, {"eps", 1e6}});
  Inputs in(mech, 1, 1, 1, seed);
  put(Matrix{q}, in["q"]);
  put(Matrix{k}, in["k"]);
  in["v"].at(0, 0, 0, 0) = 1;
  const double most = Exponents(q, omega_of(in["omega"], d)).most();  // what the query was lowered by
  return double{run_whole(in, 0, {}).at(0, 0, 0, 0)} * 1e6 * std::exp(most);
}

TEST(PerformerOmega, GivesAnUnbiasedEstimateOfTheSoftmaxKernel) {
  const Row q = {0.9, -0.4, 1.3, 0.2, -0.7, 0.5, 0, 1.1}, k = {0.6, 0.8, 0.9, -1.2, 0.3, 0.4, -0.5, 0.7};
  for (const int sign : {1, -1}) {
    Row key = k;
    for (double& x : key) x *= 0.5 * sign;
    const double want = std::exp(dot(q, key) / std::sqrt(8.0));
    const int draws = 20000;
    double sum = 0, squares = 0;
    for (int seed = 0; seed < draws; ++seed) {
      const double x = estimate(static_cast<uint64_t>(seed), 8, q, key);
      sum += x;
      squares += x * x;
    }
    const double mean = sum / draws, deviation = std::sqrt((squares / draws - mean * mean) / draws);
    EXPECT_NEAR(want, mean, 4 * deviation);
    EXPECT_LT(4 * deviation, 0.1 * want) << "or the line above says nothing";
  }
}

TEST(PerformerCost, IsWhatItDeclares) {
  const int64_t heads = 3, m = 20, d = 24, e = 40, n = 7, keys = 11;
  for (const char* stabiliser : {"running", "fixed"}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, heads, d, e),
                         {{"features", m}, {"stabiliser", stabiliser}});
    Inputs in(mech, 1, n, keys, 1);
    const uint64_t projections = static_cast<uint64_t>(2 * heads * (n + keys) * m * d);  // w_f . x
    const uint64_t state = static_cast<uint64_t>(heads * (m * e + m + (*stabiliser == 'r' ? m : 0)) * 4);
    const Cost cost{projections + linear_flops(heads, n + keys, m, e), bytes_of(in, {"q", "k", "v", "omega"}),
                    bytes_of(in, {"o"}), state};
    expect_cost(mech, make_request(1, n, keys), cost);
    expect_cost(mech, make_request(1, n, keys, ATTN_STREAM, 4000), cost);
    EXPECT_EQ(0u, Planned(mech, make_request(0, n, keys)).info().bytes_read);
  }
}

}  // namespace
}  // namespace attnkit::test
