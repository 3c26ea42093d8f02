// s4d against the convolution with its kernel in float64, called through the ABI.
#include <gtest/gtest.h>

#include <thread>

#include "reference.hpp"
#include "support/cost.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"
#include "support/stream.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

constexpr double kPi = 3.14159265358979323846;

StateSpace channel_of(Inputs& in, int64_t c) {
  const int64_t half = in["log_decay"].rows / in.mech->block().d_model;
  const auto number = [&in](const char* name, int64_t i) { return double{in[name].at(0, 0, i, 0)}; };
  StateSpace s{std::exp(number("log_step", c)), number("skip", c), {}, {}, {}};
  for (int64_t i = c * half; i < (c + 1) * half; ++i) {
    s.a.emplace_back(-std::exp(number("log_decay", i)), number("frequency", i));
    s.forward.emplace_back(number("readout", 2 * i), number("readout", 2 * i + 1));
    if (!in.mech->block().causal)
      s.backward.emplace_back(number("readout_back", 2 * i), number("readout_back", 2 * i + 1));
  }
  return s;
}

Truth convolution(Inputs& in, int64_t batch, int64_t n, const std::vector<int32_t>& lengths = {}) {
  const attn_block& block = in.mech->block();
  const int64_t d = block.d_model, width = d / block.heads;
  Truth truth{{batch, block.heads, n, n, width}, {}, {}};
  truth.o.assign(static_cast<size_t>(batch * d * n), 0);
  for (int64_t c = 0; c < d; ++c)
    for (int64_t b = 0; b < batch; ++b) {
      Row u;
      for (int64_t t = 0; t < (lengths.empty() ? n : lengths[static_cast<size_t>(b)]); ++t)
        u.push_back(in["x"].at(b, 0, t, c));
      const Row y = filtered(channel_of(in, c), u);
      for (size_t t = 0; t < y.size(); ++t)
        truth
            .o[static_cast<size_t>(((b * block.heads + c / width) * n + static_cast<int64_t>(t)) * width + c % width)] =
            y[t];
    }
  return truth;
}

double check(const attn_block& block, int64_t batch, int64_t n, const Settings& settings = {},
             const std::vector<int32_t>& lengths = {}, const std::function<void(Inputs&)>& prepare = nullptr) {
  const Mechanism mech(plugin(), block, settings);
  Inputs in(mech, batch, n, n, 3);
  if (prepare) prepare(in);
  Call call;
  call.q_len = call.k_len = lengths;
  const double error = error_of(run_whole(in, 0, call), convolution(in, batch, n, lengths));
  EXPECT_LE(error, kGate) << "N " << n;
  return error;
}

TEST(S4d, EqualsTheConvolution) {
  record_error(worst_situation([](const Situation& s) { return s.block.role != ATTN_DECODER_CROSS; },
                               [](const Situation& s) { return check(s.block, s.batch, s.queries, {}, s.q_len); }));
}

TEST(S4d, EqualsTheConvolutionOverThousandsOfRows) {
  const double causal = check(make_block(ATTN_DECODER_SELF, true, 2, 16, 16), 1, 4096);
  const double both = check(make_block(ATTN_ENCODER_SELF, false, 1, 16, 16), 1, 2048);
  record_error(worse(causal, both));
}

TEST(S4d, EqualsTheConvolutionInEveryOrder) {
  for (const int64_t order : {2, 6, 10, 256})
    for (const bool causal : {false, true})
      check(make_block(ATTN_ENCODER_SELF, causal, 3, 7, 7), 2, 130, {{"order", order}});
}

// Tiny steps, angles of many turns, and total decay.
TEST(S4d, DiscretisesExtremeSteps) {
  const auto block = make_block(ATTN_ENCODER_SELF, false, 2, 8, 8);
  check(block, 1, 300, {{"step_min", 1e-6}, {"step_max", 1e-5}});
  check(block, 1, 300, {{"step_min", 5.0}, {"step_max", 50.0}});
  check(block, 1, 300, {}, {}, [](Inputs& in) {
    for (float& x : in["log_decay"].data()) x = 9;
  });
  check(block, 1, 300, {}, {}, [](Inputs& in) {
    for (float& x : in["frequency"].data()) x *= -40;
  });
}

// (e^(dA) - 1) / A is near d where A is near 0, and is not d: with long steps the difference is large.
TEST(S4d, DiscretisesSmallA) {
  for (const float size : {0.009f, 0.003f, 1e-3f, 1e-4f})
    for (const bool turns : {false, true})
      check(make_block(ATTN_ENCODER_SELF, false, 2, 8, 8), 1, 40, {{"step_min", 0.5}, {"step_max", 50.0}}, {},
            [size, turns](Inputs& in) {
              for (float& x : in["log_decay"].data()) x = turns ? -20 : std::log(size);
              for (float& x : in["frequency"].data()) x = turns ? size : 0;
            });
}

// (e^(dA) - 1) / A is d where A is 0: then the state is the plain sum.
TEST(S4d, IntegratesWhereNothingDecaysOrTurns) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 4, 4), {{"order", int64_t{2}}});
  Inputs in(mech, 1, 20, 20, 1);
  for (float& x : in["log_decay"].data()) x = -INFINITY;
  for (float& x : in["frequency"].data()) x = 0;
  const Array out = run_whole(in, 0, {});
  for (int64_t c = 0; c < 4; ++c) {
    double sum = 0;
    for (int64_t t = 0; t < 20; ++t) sum += in["x"].at(0, 0, t, c);
    const double step = std::exp(double{in["log_step"].at(0, 0, c, 0)});
    EXPECT_NEAR(2 * in["readout"].at(0, 0, 2 * c, 0) * step * sum + in["skip"].at(0, 0, c, 0) * in["x"].at(0, 0, 19, c),
                out.at(0, 0, 19, c), 2e-6);
  }
}

TEST(S4d, HasGradients) {
  record_error(check_gradients(plugin(), {{"order", int64_t{10}}}));
  check_gradients(plugin(), {}, {.allowed = [](const Situation& s) { return s.batch == 1; }});
}

// A near 0, where (e^(dA) - 1) / A and its slope are sums of their series; and with long steps, where they are
// not.
TEST(S4d, HasGradientsWhereAIsSmall) {
  for (const double steps : {1e-2, 50.0}) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 8, 8),
                         {{"order", int64_t{4}}, {"step_min", steps / 100}, {"step_max", steps}});
    Inputs in(mech, 2, 12, 12, 3);
    in["log_decay"].set([](auto...) { return -5.0f; });
    in["frequency"].set([](int64_t, int64_t, int64_t i, int64_t) { return 3e-3f * static_cast<float>(i % 2); });
    check_gradients(in, 0, {}, true);
  }
}

// Several tiles; rows of unlike lengths; queries that stand behind the last row, all of which read it.
TEST(S4d, HasGradientsInSeveralTiles) {
  for (const bool causal : {false, true}) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, causal, 3, 7, 7), {{"order", int64_t{6}}});
    Inputs in(mech, 2, 150, 150, 3);
    check_gradients(in, 0, {.q_len = {150, 70}, .k_len = {90, 140}}, false);
    if (causal) check_gradients(in, 0, {.q_pos = {100, 3}}, false);
  }
}

TEST(S4d, HasExactGradientsOverThousandsOfRows) {
  for (const bool causal : {false, true}) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, causal, 1, 16, 16));
    Inputs in(mech, 1, 2048, 2048, 3);
    check_gradients(in, 0, {}, false);
  }
}

TEST(S4d, SavesNothing) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 8, 8));
  EXPECT_EQ(0u, Planned(mech, make_request(2, 100, 100, ATTN_TRAIN)).info().saved_bytes);
}

TEST(S4d, AnswersBitForBitHoweverTheStreamIsSplit) {
  check_any_split(Mechanism(plugin(), make_block(ATTN_DECODER_SELF, true, 3, 12, 12)), 150, 2);
}

TEST(S4d, ReadsTheNewestRowAgain) {
  check_newest_row_again(Mechanism(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 10, 10)));
}

// Steps share a discrete form: tensors that change from run to run, or are others in runs at once, count as they are.
TEST(S4d, StepsFollowTheLearnedTensors) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 11, 11), {{"order", int64_t{6}}});
  const auto steps_are_right = [](Inputs& in) {
    return same_bits(run_whole(in, 0, {}), streamed(in, {chunks_of(30, 1)}));
  };
  Inputs in(mech, 2, 30, 30, 1);
  for (const char* name : {"skip", "log_step", "log_decay", "frequency", "readout"})
    for (const int64_t at : {int64_t{0}, in[name].rows - 1}) {
      EXPECT_TRUE(steps_are_right(in)) << "before " << name;
      in[name].at(0, 0, at, 0) += 0.5f;
      EXPECT_TRUE(steps_are_right(in)) << "after " << name;
    }
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed)
    threads.emplace_back([&, seed] {
      Inputs own(mech, 1, 30, 30, seed % 2);
      for (int turn = 0; turn < 20; ++turn) EXPECT_TRUE(steps_are_right(own));
    });
  for (std::thread& t : threads) t.join();
}

TEST(S4d, NanStaysInItsChannelAndInBothDirectionsReachesAll) {
  for (const bool causal : {false, true}) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, causal, 3, 24, 24));
    Inputs in(mech, 1, 64, 64, 1);
    in["x"].at(0, 0, 40, 30) = NAN;
    const Array out = run_whole(in, 0, {});
    for (int64_t t = 0; t < 64; ++t)
      for (int64_t c = 0; c < 72; ++c)
        EXPECT_EQ(c == 30 && (t >= 40 || !causal), std::isnan(out.at(0, c / 24, t, c % 24))) << t << " " << c;
  }
}

TEST(S4d, GivesTheResultProjectedOrRaw) {
  const auto block = make_block(ATTN_DECODER_SELF, true, 2, 8, 12);
  const Mechanism projected(plugin(), block), raw(plugin(), block, {{"projected", false}});
  EXPECT_EQ(0u, projected.ports()[projected.output()]->flags);
  EXPECT_EQ(static_cast<uint32_t>(ATTN_RAW), raw.ports()[raw.output()]->flags);
  Inputs a(projected, 1, 5, 5, 1), b(raw, 1, 5, 5, 1);
  EXPECT_EQ(8, a["o"].width) << "d_model in all, whatever the values' width";
  EXPECT_TRUE(same_bits(run_whole(a, 0, {}), run_whole(b, 0, {})));
}

TEST(S4d, Refuses) {
  const auto self = make_block(ATTN_ENCODER_SELF, false, 2, 8, 8);
  expect_refused(plugin(), self, {{"order", int64_t{7}}}, "order is 7, and states come in", "order");
  expect_refused(plugin(), self, {{"step_min", 0.5}}, "step_min is 0.5 and step_max 0.1", "step_min");
  const Mechanism both(plugin(), self), cross(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 8, 8));
  expect_refused(cross, make_request(1, 4, 4), "a state space filters one sequence");
  expect_refused(both, make_request(1, 4, 4, ATTN_STREAM), "cannot stream");
  expect_refused(both, make_request(1, 4, 4, ATTN_PREFIX), "every length of the visible prefix");
}

// Steps log-uniform in their bounds, decays 1/2, frequencies pi n, C of variance 1, D of variance 1.
TEST(S4d, FillsAsThePaperInitialises) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 8, 64, 64), {{"order", int64_t{8}}});
  Inputs in(mech, 1, 1, 1, 11);
  double mean = 0, spread = 0;
  for (int64_t c = 0; c < 512; ++c) {
    const double x = (in["log_step"].at(0, 0, c, 0) - std::log(1e-3)) / std::log(100);
    EXPECT_TRUE(x >= 0 && x <= 1);
    mean += x / 512;
    spread += (x - 0.5) * (x - 0.5) / 512;
  }
  EXPECT_NEAR(0.5, mean, 0.05);
  EXPECT_NEAR(1.0 / 12, spread, 0.01);
  for (int64_t i = 0; i < 512 * 4; ++i) {
    EXPECT_EQ(std::log(0.5f), in["log_decay"].at(0, 0, i, 0));
    EXPECT_EQ(static_cast<float>(kPi * static_cast<double>(i % 4)), in["frequency"].at(0, 0, i, 0));
  }
  EXPECT_NEAR(0.5, moments(in["readout"]).square, 0.05);
  EXPECT_NEAR(0.5, moments(in["readout_back"]).square, 0.05);
  EXPECT_NEAR(1, moments(in["skip"]).square, 0.2);
  EXPECT_NE(in["readout"].at(0, 0, 0, 0), in["readout_back"].at(0, 0, 0, 0));
}

TEST(S4d, FillsTheSameBytesEverywhere) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 8, 8));
  Inputs in(mech, 1, 1, 1, 5);
  const auto is = [&in](const char* name, int64_t i) { return in[name].at(0, 0, i, 0); };
  EXPECT_EQ(-0x1.08cc16p+2f, is("log_step", 0));
  EXPECT_EQ(-0x1.041e36p-3f, is("readout", 3));
  EXPECT_EQ(-0x1.56b5dp-2f, is("skip", 15));
}

// Multiply-adds and elements counted one by one, the way the equations are written.
TEST(S4d, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, width = 8, batch = 2, n = 7, m = 11, order = 10;
  for (const bool causal : {false, true}) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, causal, heads, width, 5), {{"order", order}});
    uint64_t adds = 0, read = 0;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t c = 0; c < heads * width; ++c)
        for (int side = 0; side < (causal ? 1 : 2); ++side) {
          for (int64_t pair = 0; pair < order / 2; ++pair) {
            for (int64_t j = 0; j < m; ++j) adds += 4;  // a complex product, onto u
            for (int64_t i = 0; i < n; ++i) adds += 2;  // the real part of one
          }
          for (int64_t i = 0; i < n && side == 0; ++i) adds += 1;  // D u
        }
    Inputs in(mech, batch, n, m, 1);
    for (const attn_port* port : mech.ports())
      if (port->kind <= ATTN_KEY || port->kind == ATTN_LEARNED) read += bytes_of(in, {port->name});
    const uint64_t state = static_cast<uint64_t>(heads * width * (order + 1)) * 4;
    const Cost cost{2 * adds, read, bytes_of(in, {"o"}), state};
    expect_cost(mech, make_request(batch, n, m), cost);
    if (causal) expect_cost(mech, make_request(batch, n, m, ATTN_STREAM, 1000), cost);
  }
}

}  // namespace
}  // namespace attnkit::test
