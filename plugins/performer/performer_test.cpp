// performer against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "performer_form.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

// Every situation that the form allows; returns the largest error.
double check(const Settings& settings, const Form& form, const Denominator& denominator, float factor = 1) {
  double worst = 0;
  for (const Situation& s : situations()) {
    if (form.global && (s.block.causal || s.prefix)) continue;
    const Mechanism mech(plugin(), s.block, settings);
    Inputs in(mech, s.batch, s.queries, s.keys, 3);
    for (const char* name : {"q", "k"})
      for (float& x : in[name].data()) x *= factor;
    Call call;
    call.q_len = s.q_len;
    call.k_len = s.k_len;
    for (int64_t i = 0; i < s.batch * s.queries && s.prefix; ++i)
      call.visible.push_back(static_cast<int32_t>((i % s.queries) / 4 * 9));
    const Scene scene{s.batch, s.block.heads, s.queries,   s.keys, s.block.head_width, s.block.causal != 0,
                      s.q_len, s.k_len,       call.visible};
    const Array got = run_whole(in, s.prefix ? ATTN_PREFIX : 0, call);
    const Array& v = in["v"];
    const Truth truth = oracle(
        scene, weights(form, in, scene),
        [&v](int64_t b, int64_t h, int64_t j, int64_t c) { return double{v.at(b, h, j, c)}; }, denominator);
    const double error = error_of(got, truth);
    EXPECT_LE(error, kGate) << s.name << " times " << factor;
    worst = std::max(worst, error);
  }
  return worst;
}

const Denominator none = guard("none", 0);

void record(double error) { testing::Test::RecordProperty("error", std::to_string(1e9 * error) + "e-9"); }

TEST(Performer, EqualsItsFloat64Form) { record(check({}, {}, none)); }

TEST(Performer, TakesAnyNumberOfFeatures) {
  for (const int64_t m : {1, 15, 40, 200}) check({{"features", m}}, {}, none);
  check({{"features", int64_t{48}}, {"scaling", "sqrt_d"}}, {}, none);
}

TEST(Performer, EqualsItsFloat64FormWhereExponentialsWouldUnderflow) {
  const Settings few = {{"features", int64_t{40}}};
  record(check(few, {}, none, 10));
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
    const Array& v = in["v"];
    const auto value = [&v](int64_t, int64_t, int64_t j, int64_t c) { return double{v.at(0, 0, j, c)}; };
    EXPECT_LE(error_of(got, oracle(scene, weights({}, in, scene), value, none)), kGate);
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
  record(check(with({{"fixed", 2.0}, {"feature_eps", 0.01}}), form, none));
}

TEST(Performer, HasThePapersStabiliser) {
  const Settings base = {{"stabiliser", "global"}, {"features", int64_t{40}}, {"feature_eps", 1e-4}};
  record(check(base, {1e-4, true, 0}, none));
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
      EXPECT_LE(golden_error(g, omega, eps), 1e-12) << g.name;
      const Mechanism mech(plugin(), g.block(), {{"stabiliser", "global"}, {"features", m}, {"feature_eps", eps}});
      EXPECT_THROW(Planned(mech, make_request(1, 4, 4)), Refused) << g.name;
      continue;
    }
    for (const char* stabiliser : {"running", "fixed", "global"}) {
      if (paper && std::string(stabiliser) != "global") continue;
      const auto prepare = [&omega](Inputs& in) {
        for (size_t f = 0; f < omega.size(); ++f)
          for (size_t c = 0; c < omega[f].size(); ++c)
            in["omega"].data()[f * omega[f].size() + c] = static_cast<float>(omega[f][c]);
      };
      worst = std::max(
          worst, check_golden(plugin(), g, {{"stabiliser", stabiliser}, {"features", m}, {"feature_eps", eps}},
                              row_weight(g, omega, eps, false), row_weight(g, omega, eps, true), none, {}, prepare));
      ++ran;
    }
  }
  EXPECT_EQ(4 + 3 * 7, ran);
  record(worst);
}

// A maximum over all keys with feature_eps moves past outputs when a future key raises it; without, nothing moves.
TEST(Performer, AGlobalMaximumWouldLeakTheFuture) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 16, 8));
  Inputs in(mech, 1, 12, 12, 1);
  const Scene scene{1, 1, 12, 12, 8, true};
  const auto past = [&](double eps, float last) {
    Inputs changed = in;
    for (int64_t f = 0; f < 16; ++f) changed["k"].at(0, 0, 11, f) = last * in["omega"].data()[static_cast<size_t>(f)];
    const Array v = changed["v"];
    const auto value = [&v](int64_t, int64_t, int64_t j, int64_t c) { return double{v.at(0, 0, j, c)}; };
    return oracle(scene, weights({eps, true, 0}, changed, scene), value, none).at(0, 0, 5, 0);
  };
  EXPECT_EQ(past(1e-4, 0), past(1e-4, 0.01f)) << "this key does not raise the maximum";
  EXPECT_GT(std::abs(past(1e-4, 0) - past(1e-4, 1.5f)), 0.01);
  EXPECT_LT(std::abs(past(0, 0) - past(0, 1.5f)), 1e-12);
}

void expect_refused(const attn_block& block, const Settings& settings, uint32_t flags, const char* part, int where) {
  try {
    const Mechanism mech(plugin(), block, settings);
    Planned(mech, make_request(1, 4, 4, flags));
    FAIL() << part;
  } catch (const Refused& refused) {
    EXPECT_EQ(ATTN_UNSUPPORTED, refused.code);
    EXPECT_EQ(where, refused.where);
    EXPECT_NE(std::string::npos, std::string(refused.what()).find(part)) << refused.what();
  }
}

TEST(Performer, Refuses) {
  const auto causal = make_block(ATTN_DECODER_SELF, true, 2, 24, 24);
  const auto cross = make_block(ATTN_DECODER_CROSS, false, 2, 24, 24);
  const char* leak = "keys that a query does not see yet";
  for (const Settings& more : {Settings{{"feature_eps", 1e-4}}, Settings{{"guard", "add"}}}) {
    Settings settings = more;
    settings["stabiliser"] = "global";
    expect_refused(causal, settings, 0, leak, -1);
    expect_refused(causal, settings, ATTN_STREAM, leak, -1);
    expect_refused(cross, settings, ATTN_STREAM, leak, -1);
    expect_refused(cross, settings, ATTN_PREFIX, leak, -1);
    EXPECT_NO_THROW(Planned(Mechanism(plugin(), cross, settings), make_request(1, 4, 4)));
  }
  expect_refused(cross, {{"feature_eps", 1e-4}}, 0, "feature_eps = 0.0001 would make results depend on the order", 1);
  expect_refused(cross, {{"guard", "clamp"}}, 0, "guard = clamp needs a scale", 5);
  expect_refused(cross, {{"fixed", 3.0}}, 0, "fixed = 3 is not read when stabiliser is running", 4);
  expect_refused(cross, {{"fixed", 3.0}, {"stabiliser", "global"}}, 0, "is not read when stabiliser is global", 4);
}

TEST(Performer, PaddedKeysCountForNothingThoughZeroHasFeatures) {
  for (const char* stabiliser : {"running", "fixed", "global"}) {
    Settings settings = {{"stabiliser", stabiliser}};
    if (std::string(stabiliser) != "running") settings["feature_eps"] = 1e-4;
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16), settings);
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
}

// Keys that outgrow the scale of what was summed, by any chunks: equal bits.
TEST(Performer, TheRunningStabiliserDoesNotDependOnChunks) {
  const int64_t m = 48;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 40));
  const Planned plan(mech, make_request(1, m, m, ATTN_STREAM, m));
  for (const float slope : {0.1f, -0.1f, 1.0f, -1.0f}) {
    Inputs in(mech, 1, 6, m, 1);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t f = 0; f < 24; ++f)
          in["k"].at(0, h, j, f) *= 10 + slope * static_cast<float>(slope < 0 ? j - m : j);
    const Array whole = run_whole(in, 0, {});
    EXPECT_TRUE(all_finite(whole));
    for (const int32_t chunk : {1, 5, 17, 48}) {
      const Arena arena(plan.info().state_bytes, 1);
      Call call;
      call.arena = &arena;
      for (int32_t from = 0; from < m; from += chunk) {
        call.k_from = from;
        call.keys = std::min<int64_t>(chunk, m - from);
        call.k_pos = {from};
        plan.run(in, call);
      }
      call.keys = 0;
      call.queries = 6;
      call.k_pos = {m};
      EXPECT_TRUE(same_bits(plan.run(in, call), whole)) << slope << " by " << chunk;
    }
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

}  // namespace
}  // namespace attnkit::test
