// performer against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>

#include "reference.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"
#include "support/stream.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

// Every situation that the form allows; returns the largest error.
double check(const Settings& settings, const Form& form, const Denominator& denominator, float factor = 1) {
  const auto allowed = [&form](const Situation& s) { return !form.global || !(s.block.causal || s.prefix); };
  const auto weight = [&form](const Mechanism&, Inputs& in, const Scene& scene, const Call&) {
    return weights(form, in, scene);
  };
  const auto enlarge = [factor](Inputs& in) {
    for (const char* name : {"q", "k"})
      for (float& x : in[name].data()) x *= factor;
  };
  return check_situations(plugin(), settings, weight, denominator, enlarge, false, allowed);
}

const Denominator none = guard("none", 0);
const char* const kLeak = "keys that a query does not see yet";

TEST(Performer, EqualsItsFloat64Form) { record_error(check({}, {}, none)); }

TEST(Performer, TakesAnyNumberOfFeatures) {
  for (const int64_t m : {1, 15, 40, 200}) check({{"features", m}}, {}, none);
  check({{"features", int64_t{48}}, {"scaling", "sqrt_d"}}, {}, none);
}

TEST(Performer, EqualsItsFloat64FormWhereExponentialsWouldUnderflow) {
  const Settings few = {{"features", int64_t{40}}};
  record_error(check(few, {}, none, 10));
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 64, 16), {{"stabiliser", "fixed"}});
  Inputs in(mech, 1, 8, 8, 1);
  for (float& x : in["k"].data()) x *= 12;
  EXPECT_TRUE(std::isnan(run_whole(in, 0, {}).at(0, 0, 0, 0))) << "all features are below e^-87";
}

// w . k^ - |k^|^2 / 2 is at most |w|^2 / 2, which only wide heads bring above 88.
TEST(Performer, EqualsItsFloat64FormWhereExponentialsWouldOverflow) {
  const auto block = make_block(ATTN_DECODER_SELF, true, 1, 256, 8);
  for (const char* stabiliser : {"running", "fixed"}) {
    const Mechanism mech(plugin(), block, {{"stabiliser", stabiliser}, {"scaling", "sqrt_d"}});
    Inputs in(mech, 1, 20, 20, 1);
    const Array omega = in["omega"];
    // k^ = t w gives (t - t^2 / 2) |w|^2: 107 for key 8, 128 for key 14, so that each of them outweighs what is before.
    for (const auto& [j, t] : {std::pair{8, 0.6f}, std::pair{14, 1.0f}})
      for (int64_t f = 0; f < 256; ++f) in["k"].at(0, 0, j, f) = 4 * t * omega.data()[static_cast<size_t>(j * 256 + f)];
    const Array got = run_whole(in, 0, {});
    if (std::string(stabiliser) == "fixed") {
      EXPECT_FALSE(std::isfinite(got.at(0, 0, 19, 0)));
      continue;
    }
    const Scene scene{1, 1, 20, 20, 8, true};
    EXPECT_LE(error_of(got, oracle(scene, weights({}, in, scene), elements(in["v"]), none)), kGate);
  }
}

TEST(Performer, HasAFixedStabiliser) {
  const Settings base = {{"stabiliser", "fixed"}, {"features", int64_t{40}}};
  const auto with = [&base](Settings more) {
    more.insert(base.begin(), base.end());
    return more;
  };
  check(with({}), {}, none);
  Form form{0, false, 2};
  check(with({{"fixed", 2.0}}), form, none);
  check(with({{"fixed", 2.0}, {"guard", "add"}, {"eps", 0.01}}), form, guard("add", 0.01));
  check(with({{"fixed", 2.0}, {"guard", "clamp"}, {"eps", 0.1}}), form, guard("clamp", 0.1));
  form.eps = 0.01;
  record_error(check(with({{"fixed", 2.0}, {"feature_eps", 0.01}}), form, none));
}

TEST(Performer, HasThePapersStabiliser) {
  const Settings base = {{"stabiliser", "global"}, {"features", int64_t{40}}, {"feature_eps", 1e-4}};
  record_error(check(base, {1e-4, true, 0}, none));
  Settings guarded = base;
  guarded["guard"] = "add";
  guarded["eps"] = 0.01;
  check(guarded, {1e-4, true, 0}, guard("add", 0.01));
}

// While it cancels, the paper's stabiliser is the running one.
TEST(Performer, StabilisersThatCancelAreOne) {
  const auto block = make_block(ATTN_DECODER_SELF, true, 2, 24, 40);
  const Mechanism running(plugin(), block), global(plugin(), block, {{"stabiliser", "global"}});
  Inputs a(running, 2, 30, 30, 1), b(global, 2, 30, 30, 1);
  EXPECT_TRUE(same_bits(run_whole(a, 0, {}), run_whole(b, 0, {})));
}

TEST(Performer, EqualsTheGoldenCases) {
  double worst = 0;
  int ran = 0;
  for (const Golden& g : golden("performer")) {
    const double eps = g.params["eps"];
    const bool paper = g.params["stab"] == "global_key_max";
    const Matrix omega = g.in["omega"];
    const auto m = static_cast<int64_t>(omega.size());
    if (g.causal && eps > 0) {  // leaks the future: the form is held to the case, the plugin must refuse it
      const Matrix exact = rows_of(truth_of(g, false, row_weight(g, omega, eps, false), none));
      EXPECT_LE(largest_difference(exact, g.o), 1e-12) << g.name;
      const Mechanism mech(plugin(), g.block(), {{"stabiliser", "global"}, {"features", m}, {"feature_eps", eps}});
      expect_refused(mech, make_request(1, 4, 4), kLeak);
      continue;
    }
    for (const char* stabiliser : {"running", "fixed", "global"}) {
      if (paper && std::string(stabiliser) != "global") continue;
      const auto prepare = [&omega](Inputs& in) { put(flat(omega), in["omega"]); };
      worst = std::max(
          worst, check_golden(plugin(), g, {{"stabiliser", stabiliser}, {"features", m}, {"feature_eps", eps}},
                              row_weight(g, omega, eps, false), row_weight(g, omega, eps, true), none, {}, prepare));
      ++ran;
    }
  }
  EXPECT_EQ(4 + 3 * 7, ran);
  record_error(worst);
}

// Wherever stabilisers cancel.
TEST(Performer, HasGradients) {
  record_error(check_gradients(plugin(), {{"features", int64_t{40}}}));
  check_gradients(plugin(), {{"features", int64_t{7}}, {"scaling", "sqrt_d"}});
  check_gradients(plugin(), {{"features", int64_t{40}}, {"stabiliser", "fixed"}});
}

// Keys that come later have exponents above those before by far more than f32 holds.
TEST(Performer, HasGradientsWhereExponentialsWouldUnderflow) {
  const auto shrinking = [](Inputs& in) {
    Array& k = in["k"];
    k.set([&](int64_t b, int64_t h, int64_t i, int64_t c) {
      return k.at(b, h, i, c) * 8 * static_cast<float>(k.rows - i) / static_cast<float>(k.rows);
    });
  };
  check_gradients(plugin(), {{"features", int64_t{40}}}, {.prepare = shrinking});
}

// Several tiles of the gradient, and more than it keeps the sums of.
TEST(Performer, HasGradientsOfLongSequences) {
  for (const auto& [n, stabiliser] : {std::pair{2100, "fixed"}, {40000, "running"}}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 8, 8),
                         {{"features", int64_t{8}}, {"stabiliser", stabiliser}});
    Inputs in(mech, 1, n, n, 1);
    record_error(check_gradients(in, 0, {}, false));
  }
}

// One head with its stabilisers as they are at first, whatever becomes of its inputs.
struct Frozen {
  Matrix omega;
  Row c_q;
  double c_k, eps;
  Denominator denominator;

  double loss(const Inputs64& now, const Array64& given) const {
    Inputs64 in = now;
    const Matrix v = rows_of(in["v"], 0, 0, in.keys);
    Matrix keys;
    for (const Row& k : rows_of(in["k"], 0, 0, in.keys)) keys.push_back(Exponents(k, omega).features(c_k, eps));
    double loss = 0;
    for (int64_t i = 0; i < in["q"].rows; ++i) {
      const Row query = Exponents(row_of(in["q"], 0, 0, i), omega).features(c_q[static_cast<size_t>(i)], eps);
      double sum = 0, mixed = 0;
      for (size_t j = 0; j < keys.size(); ++j) {
        const double weight = dot(query, keys[j]);
        sum += weight;
        for (size_t c = 0; c < v[j].size(); ++c) mixed += weight * v[j][c] * given.at(0, 0, i, static_cast<int64_t>(c));
      }
      loss += mixed / denominator(sum);
    }
    return loss;
  }
};

TEST(Performer, HoldsStabilisersThatDoNotCancelConstant) {
  double worst = 0;
  for (const char* stabiliser : {"fixed", "global"})
    for (const char* kind : {"none", "add", "clamp"})
      for (const double eps : {0.0, 0.01}) {
        const bool global = stabiliser[0] == 'g';
        const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 4, 3),
                             {{"stabiliser", stabiliser},
                              {"features", int64_t{6}},
                              {"feature_eps", eps},
                              {"guard", kind},
                              {"eps", 0.3},
                              {"fixed", global ? 0 : 0.5}});
        Inputs in(mech, 1, 5, 7, 1);
        Inputs64 wide(in);
        Training<double> training(wide, 0, {});
        Gradients<double> grads = training.gradients();
        training.backward(grads);
        Frozen frozen{omega_of(in["omega"], 4), {}, global ? -INFINITY : 0.5, eps, guard(kind, 0.3)};
        for (const Row& q : rows_of(in["q"], 0, 0, 5)) frozen.c_q.push_back(Exponents(q, frozen.omega).most());
        for (const Row& k : rows_of(in["k"], 0, 0, 7))
          if (global) frozen.c_k = std::max(frozen.c_k, Exponents(k, frozen.omega).most());
        for (const char* name : {"q", "k", "v"}) {
          const Array64& gradient = grads[static_cast<size_t>(mech.find(name))];
          for (int64_t i = 0; i < gradient.rows; ++i)
            for (int64_t c = 0; c < gradient.width; ++c) {
              Inputs64 above = wide, below = wide;
              above[name].at(0, 0, i, c) += 1e-5;
              below[name].at(0, 0, i, c) -= 1e-5;
              const Array64& given = grads[mech.output()];
              const double slope = (frozen.loss(above, given) - frozen.loss(below, given)) / 2e-5;
              EXPECT_NEAR(slope, gradient.at(0, 0, i, c), 1e-8) << stabiliser << " " << kind << " " << eps << name;
              worst = worse(worst, std::abs(slope - gradient.at(0, 0, i, c)));
            }
        }
      }
  record_error(worst);
}

// f32 against f64 of the forms that are no central difference's.
TEST(Performer, HasGradientsInF32) {
  for (const char* stabiliser : {"fixed", "global"}) {
    const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 40),
                         {{"stabiliser", stabiliser}, {"feature_eps", 1e-4}, {"guard", "add"}});
    Inputs in(mech, 2, 70, 90, 1);
    Inputs64 wide(in);
    const Gradients<float> got = backward(in, 0, {});
    const Gradients<double> want = backward(wide, 0, {});
    for (const char* name : {"q", "k", "v"}) {
      const auto p = static_cast<size_t>(mech.find(name));
      EXPECT_LE(rms_ratio(got[p], Array(want[p])), kGate) << stabiliser << " " << name;
    }
  }
}

// A maximum over all keys with feature_eps moves past outputs when a future key raises it; without, nothing moves.
TEST(Performer, AGlobalMaximumWouldLeakTheFuture) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 16, 8));
  Inputs in(mech, 1, 12, 12, 1);
  const Scene scene{1, 1, 12, 12, 8, true};
  const auto past = [&](double eps, float last) {
    Inputs changed = in;
    for (int64_t f = 0; f < 16; ++f) changed["k"].at(0, 0, 11, f) = last * in["omega"].data()[static_cast<size_t>(f)];
    return oracle(scene, weights({eps, true, 0}, changed, scene), elements(changed["v"]), none).at(0, 0, 5, 0);
  };
  EXPECT_EQ(past(1e-4, 0), past(1e-4, 0.01f)) << "this key does not raise the maximum";
  EXPECT_GT(std::abs(past(1e-4, 0) - past(1e-4, 1.5f)), 0.01);
  EXPECT_LT(std::abs(past(0, 0) - past(0, 1.5f)), 1e-12);
}

TEST(Performer, Refuses) {
  const auto causal = make_block(ATTN_DECODER_SELF, true, 2, 24, 24);
  const auto cross = make_block(ATTN_DECODER_CROSS, false, 2, 24, 24);
  for (const Settings& more : {Settings{{"feature_eps", 1e-4}}, Settings{{"guard", "add"}}}) {
    Settings settings = more;
    settings["stabiliser"] = "global";
    const Mechanism self(plugin(), causal, settings), across(plugin(), cross, settings);
    expect_refused(self, make_request(1, 4, 4), kLeak);
    expect_refused(self, make_request(1, 4, 4, ATTN_STREAM), kLeak);
    expect_refused(across, make_request(1, 4, 4, ATTN_STREAM), kLeak);
    expect_refused(across, make_request(1, 4, 4, ATTN_PREFIX), kLeak);
    EXPECT_NO_THROW(Planned(across, make_request(1, 4, 4)));
  }
  const auto says = [&cross](const Settings& settings, const char* words, const char* option) {
    expect_refused(plugin(), cross, settings, words, option);
  };
  says({{"feature_eps", 1e-4}}, "feature_eps = 0.0001 would make results depend on the order", "feature_eps");
  says({{"guard", "clamp"}}, "guard = clamp needs a scale", "guard");
  says({{"fixed", 3.0}}, "fixed = 3 is not read when stabiliser is running", "fixed");
  says({{"fixed", 3.0}, {"stabiliser", "global"}}, "is not read when stabiliser is global", "fixed");
}

TEST(Performer, PaddedKeysCountForNothingThoughZeroHasFeatures) {
  for (const char* stabiliser : {"running", "fixed", "global"}) {
    SCOPED_TRACE(stabiliser);
    Settings settings = {{"stabiliser", stabiliser}};
    if (std::string(stabiliser) != "running") settings["feature_eps"] = 1e-4;
    check_zero_keys_take_weight(Mechanism(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16), settings));
  }
}

// Keys that outgrow the scale of what was summed, by any chunks: equal bits.
TEST(Performer, TheRunningStabiliserDoesNotDependOnChunks) {
  const int64_t m = 48;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 40));
  for (const float slope : {0.1f, -0.1f, 1.0f, -1.0f}) {
    Inputs in(mech, 1, 6, m, 1);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t f = 0; f < 24; ++f)
          in["k"].at(0, h, j, f) *= 10 + slope * static_cast<float>(slope < 0 ? j - m : j);
    const Array whole = run_whole(in, 0, {});
    EXPECT_TRUE(all_finite(whole));
    for (const int64_t chunk : {1, 5, 17, 48})
      EXPECT_TRUE(same_bits(streamed(in, {chunks_of(m, chunk)}), whole)) << slope << " by " << chunk;
  }
}

// Keys of 1e16 are far below what their features could tell apart, and the denominator is still 1 or more.
TEST(Performer, StaysFiniteWithLargeKeys) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 16, 8));
  for (const float factor : {1e14f, 1e16f, 1e18f}) {
    Inputs in(mech, 1, 3, 9, 1);
    for (float& x : in["k"].data()) x *= factor;
    for (float& x : in["v"].data()) x = 2;
    const Array got = run_whole(in, 0, {});
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t c = 0; c < 8; ++c) EXPECT_NEAR(2, got.at(0, 0, i, c), 1e-5) << factor;
  }
}

// Finite keys whose |k|^2 is infinite have no features at all; the others keep theirs.
TEST(Performer, ForgetsKeysThatAreTooLarge) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 16, 8));
  Inputs in(mech, 1, 3, 9, 1);
  for (int64_t f = 0; f < 16; ++f) in["k"].at(0, 0, 0, f) *= 1e25f;
  const Array got = run_whole(in, 0, {});
  Inputs rest(mech, 1, 3, 8, 1);
  for (const char* name : {"q", "k", "v"})
    rest[name].set(
        [&](int64_t b, int64_t h, int64_t i, int64_t c) { return in[name].at(b, h, i + (name[0] != 'q'), c); });
  EXPECT_TRUE(all_finite(got));
  EXPECT_LE(rms_ratio(got, run_whole(rest, 0, {})), 1e-6);
}

// Omega, then the queries; keys are one piece between them.
TEST(Performer, SharesTheQueriesOfOneHead) {
  for (const char* stabiliser : {"running", "global"}) {
    const attn_block block = make_block(ATTN_ENCODER_SELF, false, 1, 64, 40);
    const Mechanism mech(plugin(), block, {{"features", int64_t{200}}, {"stabiliser", stabiliser}});
    EXPECT_EQ((std::vector<int64_t>{13, 8}), check_pieces(mech, 512)) << stabiliser;
  }
}

TEST(Performer, SharesHeadsOfKeys) { check_shared_keys(plugin(), {{"features", int64_t{40}}}); }

}  // namespace
}  // namespace attnkit::test
