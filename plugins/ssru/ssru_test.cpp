// ssru against its recurrence in float64, called through the ABI.
#include <gtest/gtest.h>

#include "reference.hpp"
#include "support/cost.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"
#include "support/stream.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

bool fits(const Situation& s) { return s.block.causal != 0 && s.block.role != ATTN_DECODER_CROSS; }

Matrix matrix_of(Inputs& in, const char* name, int64_t d) {
  Matrix made(static_cast<size_t>(d));
  for (int64_t k = 0; k < d; ++k)
    for (int64_t n = 0; n < d; ++n) made[static_cast<size_t>(k)].push_back(double{in[name].at(0, 0, k * d + n, 0)});
  return made;
}

Truth recurrence(Inputs& in, int64_t batch, int64_t n, const std::vector<int32_t>& lengths = {}) {
  const attn_block& block = in.mech->block();
  const int64_t d = block.d_model, width = d / block.heads;
  const Matrix w = matrix_of(in, "value", d), w_f = matrix_of(in, "forget", d);
  Row b_f;
  for (int64_t c = 0; c < d; ++c) b_f.push_back(double{in["forget_bias"].at(0, 0, c, 0)});
  Truth truth{{batch, block.heads, n, n, width}, {}, {}};
  truth.o.assign(static_cast<size_t>(batch * d * n), 0);
  for (int64_t b = 0; b < batch; ++b) {
    Matrix x;
    for (int64_t t = 0; t < (lengths.empty() ? n : lengths[static_cast<size_t>(b)]); ++t) {
      x.emplace_back();
      for (int64_t c = 0; c < d; ++c) x.back().push_back(double{in["x"].at(b, 0, t, c)});
    }
    const Matrix h = recurrent(x, w, w_f, b_f);
    for (int64_t t = 0; t < static_cast<int64_t>(h.size()); ++t)
      for (int64_t c = 0; c < d; ++c)
        truth.o[static_cast<size_t>(((b * block.heads + c / width) * n + t) * width + c % width)] =
            h[static_cast<size_t>(t)][static_cast<size_t>(c)];
  }
  return truth;
}

double check(const attn_block& block, int64_t batch, int64_t n, const std::vector<int32_t>& lengths = {},
             const std::function<void(Inputs&)>& prepare = nullptr) {
  const Mechanism mech(plugin(), block);
  Inputs in(mech, batch, n, n, 3);
  if (prepare) prepare(in);
  Call call;
  call.q_len = call.k_len = lengths;
  const double error = error_of(run_whole(in, 0, call), recurrence(in, batch, n, lengths));
  EXPECT_LE(error, kGate) << "N " << n;
  return error;
}

TEST(Ssru, EqualsTheRecurrence) {
  record_error(worst_situation(fits, [](const Situation& s) { return check(s.block, s.batch, s.queries, s.q_len); }));
}

TEST(Ssru, EqualsTheRecurrenceOverThousandsOfRows) {
  record_error(check(make_block(ATTN_DECODER_SELF, true, 2, 20, 20), 1, 4096));
}

// Gates that keep all and that keep nothing.
TEST(Ssru, EqualsTheRecurrenceWhereGatesAreShut) {
  for (const float bias : {-200.0f, -30.0f, -10.0f, 5.0f, 10.0f, 200.0f})
    check(make_block(ATTN_DECODER_SELF, true, 2, 8, 8), 1, 70, {},
          [bias](Inputs& in) { in["forget_bias"].set([bias](auto...) { return bias; }); });
}

// Computed in float64 by NumPy, as it stands in the paper.
TEST(Ssru, EqualsTheGoldenCase) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 2, 2));
  Inputs in(mech, 1, 3, 3, 1);
  const auto put = [&in](const char* name, int64_t width, const std::vector<float>& numbers) {
    for (size_t i = 0; i < numbers.size(); ++i)
      in[name].at(0, 0, static_cast<int64_t>(i) / width, static_cast<int64_t>(i) % width) = numbers[i];
  };
  put("x", 4, {0.5f, -1.25f, 2, 0.75f, -0.375f, 0.625f, 1.5f, -2, 1, 0.25f, -0.5f, 0.125f});
  put("value", 1,
      {0.25f, -0.5f, 1, 0.125f, 0.75f, 0.375f, -0.25f, -1, -0.125f, 0.5f, 0.625f, 0.25f, 1.5f, -0.75f, 0.375f, -0.5f});
  put("forget", 1,
      {1, 0.25f, -0.75f, 0.5f, -0.5f, 1.25f, 0.125f, 0.375f, 0.25f, -0.25f, 1, -1.5f, 0.625f, 0.5f, -0.375f, 0.75f});
  put("forget_bias", 1, {0.125f, -0.25f, 0.5f, 1});
  const std::vector<double> golden = {0.00612995771690375,
                                      0,
                                      0.3658708533877908,
                                      1.207117578528844,
                                      0,
                                      1.8519560239292086,
                                      0.3355542911062484,
                                      0.7347702951446133,
                                      0,
                                      0.869611806471612,
                                      0.5651179733360566,
                                      0.6506143050541064};
  const Truth truth = recurrence(in, 1, 3);
  const Array out = run_whole(in, 0, {});
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t c = 0; c < 4; ++c) {
      const double expected = golden[static_cast<size_t>(t * 4 + c)];
      EXPECT_NEAR(expected, out.at(0, c / 2, t, c % 2), 1e-6);
      EXPECT_NEAR(expected, truth.o[static_cast<size_t>(((c / 2) * 3 + t) * 2 + c % 2)], 1e-14);
    }
}

TEST(Ssru, HasGradients) { record_error(check_gradients(plugin(), {}, {.allowed = fits})); }

// Several tiles; rows of unlike lengths; queries that stand behind the last row, all of which read it.
TEST(Ssru, HasGradientsInSeveralTiles) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 3, 7, 7));
  Inputs in(mech, 2, 150, 150, 3);
  check_gradients(in, 0, {.q_len = {150, 70}, .k_len = {90, 140}}, false);
  check_gradients(in, 0, {.q_pos = {100, 3}}, false);
}

TEST(Ssru, AnswersBitForBitHoweverTheStreamIsSplit) {
  check_any_split(Mechanism(plugin(), make_block(ATTN_DECODER_SELF, true, 3, 12, 12)), 150, 2);
}

TEST(Ssru, ReadsTheNewestRowAgain) {
  check_newest_row_again(Mechanism(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 10, 10)));
}

TEST(Ssru, NanReachesAllThatFollows) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 3, 24, 24));
  Inputs in(mech, 1, 64, 64, 1);
  in["x"].at(0, 0, 40, 30) = NAN;
  const Array out = run_whole(in, 0, {});
  for (int64_t t = 0; t < 64; ++t)
    for (int64_t c = 0; c < 72; ++c) EXPECT_EQ(t >= 40, std::isnan(out.at(0, c / 24, t, c % 24))) << t << " " << c;
}

TEST(Ssru, GivesTheResultRawOrProjected) {
  const auto block = make_block(ATTN_DECODER_SELF, true, 2, 8, 12);
  const Mechanism raw(plugin(), block), projected(plugin(), block, {{"projected", true}});
  EXPECT_EQ(static_cast<uint32_t>(ATTN_RAW), raw.ports()[raw.output()]->flags);
  EXPECT_EQ(0u, projected.ports()[projected.output()]->flags);
  Inputs a(raw, 1, 5, 5, 1), b(projected, 1, 5, 5, 1);
  EXPECT_TRUE(same_bits(run_whole(a, 0, {}), run_whole(b, 0, {})));
}

TEST(Ssru, Refuses) {
  const Mechanism self(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 8, 8));
  const Mechanism both(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 8, 8));
  const Mechanism cross(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 8, 8));
  expect_refused(cross, make_request(1, 4, 4), "a recurrent unit runs over one sequence");
  expect_refused(both, make_request(1, 4, 4), "a recurrent unit sees what came before alone");
  expect_refused(self, make_request(1, 4, 4, ATTN_PREFIX), "a causal block already says");
}

TEST(Ssru, FillsAsMarianInitialises) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 4, 16, 16));
  Inputs in(mech, 1, 1, 1, 11);
  for (const char* name : {"value", "forget"}) {
    for (int64_t i = 0; i < 64 * 64; ++i) EXPECT_LE(std::abs(in[name].at(0, 0, i, 0)), std::sqrt(3.0 / 64));
    EXPECT_NEAR(1.0 / 64, moments(in[name]).square, 1e-3);
  }
  EXPECT_NE(in["value"].at(0, 0, 0, 0), in["forget"].at(0, 0, 0, 0));
  for (int64_t c = 0; c < 64; ++c) EXPECT_EQ(0, in["forget_bias"].at(0, 0, c, 0));
}

// Multiply-adds and elements counted one by one, the way the equations are written.
TEST(Ssru, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, width = 8, batch = 2, n = 7, m = 11, d = heads * width;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, heads, width, 5));
  uint64_t flops = 0, read = 0;
  for (int64_t row = 0; row < batch * m; ++row)
    for (int64_t c = 0; c < d; ++c) {
      for (int64_t k = 0; k < d; ++k) flops += 4;  // of W and of W_f
      flops += 4;                                  // f c + (1 - f) w
    }
  Inputs in(mech, batch, n, m, 1);
  for (const attn_port* port : mech.ports())
    if (port->kind <= ATTN_KEY || port->kind == ATTN_LEARNED) read += bytes_of(in, {port->name});
  const Cost cost{flops, read, bytes_of(in, {"o"}), static_cast<uint64_t>(d) * 4};
  expect_cost(mech, make_request(batch, n, m), cost);
  expect_cost(mech, make_request(batch, n, m, ATTN_STREAM, 1000), cost);
}

}  // namespace
}  // namespace attnkit::test
