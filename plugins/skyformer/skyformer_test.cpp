// skyformer against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "reference.hpp"
#include "support/cost.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

// The rows of [Q; K] that the table means for a row of this length.
std::vector<size_t> places_of(const Array& table, int64_t length) {
  std::vector<size_t> places;
  for (int64_t i = 0; i < table.rows; ++i)
    places.push_back(static_cast<size_t>(std::floor(double{table.at(0, 0, i, 0)} * static_cast<double>(length))));
  return places;
}

// The plugin against the float64 form on these inputs; returns the error.
double check(Inputs& in, const Options& options, const std::vector<int32_t>& lengths = {}) {
  const Array &q = in["q"], &k = in["k"], &v = in["v"];
  Call call;
  call.q_len = call.k_len = lengths;
  const Array got = run_whole(in, 0, call);
  EXPECT_TRUE(all_finite(got));
  Scene scene{q.batch, q.heads, q.rows, k.rows, v.width};
  scene.q_len = scene.k_len = lengths;
  std::vector<Matrix> all;
  for (int64_t b = 0; b < q.batch; ++b)
    for (int64_t h = 0; h < q.heads; ++h) {
      const int64_t n = lengths.empty() ? q.rows : lengths[static_cast<size_t>(b)];
      all.push_back(weights_of(rows_of(q, b, h, n), rows_of(k, b, h, n), places_of(in["samples"], n), options));
    }
  const Truth truth = oracle(
      scene,
      [&](int64_t b, int64_t h, int64_t i, int64_t j) {
        return all[static_cast<size_t>(b * q.heads + h)][static_cast<size_t>(i)][static_cast<size_t>(j)];
      },
      elements(v), undivided);
  const double error = error_of(got, truth);
  EXPECT_LE(error, kGate);
  return error;
}

attn_block block(int32_t d, int32_t e, uint32_t heads = 2) { return make_block(ATTN_ENCODER_SELF, false, heads, d, e); }

double check(int64_t n, const Options& options, int32_t d = 24, int32_t e = 40, float factor = 1, float offset = 0) {
  const Mechanism mech(plugin(), block(d, e), options.settings());
  Inputs in(mech, 1, n, n, 3);
  for (const char* name : {"q", "k"})
    for (float& x : in[name].data()) x = x * factor + offset;
  return check(in, options);
}

TEST(Skyformer, EqualsItsFloat64Form) {
  const auto encoders = [](const Situation& s) { return s.block.role == ATTN_ENCODER_SELF; };
  double worst = worst_situation(encoders, [](const Situation& s) {
    const Mechanism mech(plugin(), s.block);
    Inputs in(mech, s.batch, s.queries, s.keys, 3);
    return check(in, {}, s.q_len);
  });
  for (const int64_t n : {2, 33, 300}) worst = worse(worst, check(n, {}));
  record_error(worst);
}

TEST(Skyformer, HasGradients) {
  double worst = 0;
  for (const Options& options : {Options{.samples = 5},
                                 {.samples = 20},
                                 {.samples = 9, .iterations = 1, .gamma = 1},
                                 {.samples = 6, .iterations = 9, .gamma = 0.01, .scale = 1.5}})
    worst = worse(worst, check_gradients(plugin(), options.settings()));
  record_error(worst);
}

TEST(Skyformer, TakesAnyNumberOfSamples) {
  for (const int64_t samples : {1, 2, 15, 16, 50, 130}) check(60, {.samples = samples});
}

TEST(Skyformer, TakesAScale) {
  check(60, {.scale = 0.42044820762685725});  // 32^-1/4
  check(60, {.scale = 1.5});
}

TEST(Skyformer, IteratesAsOftenAsToldWithAnyGamma) {
  double worst = 0;
  for (const int64_t iterations : {1, 7, 16})
    for (const double gamma : {0.0, 1e-5, 1e-3, 0.1, 5.0})
      worst = worse(worst, check(100, {.samples = 64, .iterations = iterations, .gamma = gamma}, 4, 8));
  record_error(worst);
}

// Many samples of few rows: A_X is as singular as can be, and gamma alone makes M regular.
TEST(Skyformer, SurvivesRowsThatAreSampledAgainAndAgain) {
  double worst = 0;
  for (const int64_t n : {1, 10})
    for (const int64_t iterations : {6, 16}) worst = worse(worst, check(n, {.iterations = iterations}));
  record_error(worst);
}

TEST(Skyformer, NeedsGammaWhereARowIsSampledTwice) {
  const Mechanism with(plugin(), block(8, 8, 1), Options{.samples = 2}.settings());
  const Mechanism without(plugin(), block(8, 8, 1), Options{.samples = 2, .iterations = 12, .gamma = 0}.settings());
  Inputs in(with, 1, 6, 6, 1), other(without, 1, 6, 6, 1);
  for (Inputs* x : {&in, &other})
    for (int64_t i = 0; i < 2; ++i) (*x)["samples"].at(0, 0, i, 0) = 0.5f;
  check(in, {.samples = 2});
  // Both rows of M are [1, 1]: there is no inverse, and the iteration ends in the pseudo-inverse.
  const Array got = run_whole(other, 0, {});
  const Matrix q = rows_of(other["q"], 0, 0, 6), k = rows_of(other["k"], 0, 0, 6), v = rows_of(other["v"], 0, 0, 6);
  const double scale = std::pow(8.0, -0.25);
  const Matrix expected = times(kernel(q, {q[3]}, scale), times(kernel({q[3]}, k, scale), v));
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(expected[i][0], got.at(0, 0, static_cast<int64_t>(i), 0), 1e-5);
}

TEST(Skyformer, KeepsItsDigitsFarFromTheOriginAndForNearRows) {
  double worst = 0;
  for (const float factor : {0.01f, 0.3f, 3.0f}) worst = worse(worst, check(80, {}, 24, 40, factor));
  record_error(worse(worst, check(80, {}, 24, 40, 1, 64)));
}

// One head with the golden inputs and these rows sampled.
double check_golden_with(const Golden& g, const std::vector<size_t>& places, Options options) {
  const auto n = static_cast<int64_t>(g.q.size());
  options.samples = static_cast<int64_t>(places.size());
  const Mechanism mech(plugin(), block(static_cast<int32_t>(g.q[0].size()), static_cast<int32_t>(g.v[0].size()), 1),
                       options.settings());
  Inputs in(mech, 1, n, n, 1);
  put(g.q, in["q"]);
  put(g.k, in["k"]);
  put(g.v, in["v"]);
  for (size_t i = 0; i < places.size(); ++i)
    in["samples"].at(0, 0, static_cast<int64_t>(i), 0) =
        static_cast<float>((static_cast<double>(places[i]) + 0.5) / static_cast<double>(n));
  EXPECT_EQ(places, places_of(in["samples"], n));
  return check(in, options);
}

TEST(Skyformer, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("skyformer")) {
    const auto places = g.params["idx"].get<std::vector<size_t>>();
    const Options options{.iterations = g.params["iters"], .gamma = g.params["gamma"]};
    EXPECT_LE(largest_difference(times(weights_of(g.q, g.k, places, options), g.v), g.o), 1e-12) << g.name;
    worst = worse(worst, check_golden_with(g, places, options));
  }
  record_error(worst);
}

// With every row sampled once and next to no gamma it is the kernel that it approximates.
TEST(Skyformer, BecomesTheKernelItself) {
  for (const Golden& g : golden("skyformer")) {
    const Matrix target = g.params["exact_kernelized"];
    const double scale = std::pow(static_cast<double>(g.q[0].size()), -0.25);
    EXPECT_LE(largest_difference(times(kernel(g.q, g.k, scale), g.v), target), 1e-12);
    std::vector<size_t> places(2 * g.q.size());
    std::iota(places.begin(), places.end(), 0);
    const Options options{.samples = static_cast<int64_t>(places.size()), .iterations = 16, .gamma = 1e-9};
    EXPECT_LE(largest_difference(times(weights_of(g.q, g.k, places, options), g.v), target), 1e-4);
    check_golden_with(g, places, options);
  }
}

TEST(Skyformer, SamplesHalfFromQueriesAndHalfFromKeys) {
  const Mechanism mech(plugin(), block(24, 24), Options{.samples = 1001}.settings());
  Inputs in(mech, 1, 1, 1, 42), other(mech, 1, 1, 1, 43);
  const Array& table = in["samples"];
  double mean = 0, square = 0;
  for (int64_t i = 0; i < 1001; ++i) {
    const double u = table.at(0, 0, i, 0) - (i < 500 ? 0.0 : 1.0);
    EXPECT_TRUE(0 <= u && u < 1) << i;
    mean += u / 1001;
    square += u * u / 1001;
  }
  EXPECT_NEAR(0.5, mean, 0.03);
  EXPECT_NEAR(1.0 / 3, square, 0.03);
  EXPECT_FALSE(same_bits(table, other["samples"]));
  EXPECT_EQ(0x1.b745dep-1f, table.at(0, 0, 0, 0));
  EXPECT_EQ(0x1.7e6458p+0f, table.at(0, 0, 1000, 0));
}

TEST(Skyformer, TakesTheOutermostPlaces) {
  const Options options{.samples = 4};
  const Mechanism mech(plugin(), block(24, 24), options.settings());
  for (const int64_t n : {1, 3, 47}) {
    Inputs in(mech, 1, n, n, 1);
    const float places[] = {0, std::nextafter(1.0f, 0.0f), 1, std::nextafter(2.0f, 0.0f)};
    for (int64_t i = 0; i < 4; ++i) in["samples"].at(0, 0, i, 0) = places[i];
    check(in, options);
  }
}

TEST(Skyformer, RefusesATableOfOtherPlaces) {
  const Mechanism mech(plugin(), block(24, 24));
  for (const float place : {2.0f, -0.001f, std::numeric_limits<float>::quiet_NaN()}) {
    Inputs in(mech, 1, 4, 4, 1);
    in["samples"].at(0, 0, 7, 0) = place;
    expect_refused([&] { run_whole(in, 0, {}); }, "samples[7] is ", mech.find("samples"), ATTN_INVALID);
  }
}

TEST(Skyformer, RefusesInItsOwnWords) {
  const auto says = [](const attn_block& at, uint32_t flags, const char* what) {
    expect_refused(Mechanism(plugin(), at), make_request(1, 4, 4, flags), what);
  };
  says(make_block(ATTN_DECODER_SELF, true, 2, 24, 24), 0, "so it cannot be causal");
  says(make_block(ATTN_ENCODER_SELF, true, 2, 24, 24), 0, "so it cannot be causal");
  says(make_block(ATTN_DECODER_CROSS, false, 2, 24, 24), 0, "not defined across two");
  says(block(24, 24), ATTN_STREAM, "Skyformer cannot stream");
  says(block(24, 24), ATTN_PREFIX, "has no prefix form");
  EXPECT_NO_THROW(Planned(Mechanism(plugin(), block(24, 24)), make_request(1, 4, 4)));
}

// Operations and elements counted one by one, the way the equation is written.
TEST(Skyformer, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, d = 24, e = 40, n = 7, m = 10, steps = 2;
  const Mechanism mech(plugin(), block(d, e, heads), Options{.samples = m, .iterations = steps}.settings());
  uint64_t flops = 0;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t row = 0; row < n + n + m; ++row)  // kernels: subtract, multiply, add
      for (int64_t i = 0; i < m; ++i)
        for (int64_t f = 0; f < d; ++f) flops += 3;
    for (int64_t row = 0; row < n + n + m; ++row)  // A_K^T v, Z (...), A_Q (...)
      for (int64_t i = 0; i < m; ++i) flops += static_cast<uint64_t>(2 * e);
    for (int64_t product = 0; product < 4 * steps; ++product)
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < m; ++j) flops += static_cast<uint64_t>(2 * m);
  }
  Inputs in(mech, 1, n, n, 1);
  expect_cost(mech, make_request(1, n, n), {flops, bytes_of(in, {"q", "k", "v", "samples"}), bytes_of(in, {"o"})});
  expect_cost(mech, make_request(0, n, n), {0, 0, 0});
  expect_cost(mech, make_request(1, 0, n), {0, 0, 0});
  expect_cost(mech, make_request(1, n, 0), {0, 0, bytes_of(in, {"o"})});
}

}  // namespace
}  // namespace attnkit::test
