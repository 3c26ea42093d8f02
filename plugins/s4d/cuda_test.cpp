// The CUDA variant of s4d: blocks of several batch rows, and rows split among blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cuda/variants.hpp"

namespace attnkit::test {
namespace {

// Blocks of short runs take batch rows after each other, two of so many.
TEST(S4dVariant, ANanStaysInItsBatchRow) {
  const int64_t batch = 2112, order = 2;
  const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/s4d.so"), make_block(ATTN_DECODER_SELF, true, 1, 2, 2),
                       {{"order", order}});
  Inputs in(mech, batch, 1, 1, 1);
  const Array want = run_whole(in, 0, {});
  in["x"].at(0, 0, 0, 0) = std::numeric_limits<float>::quiet_NaN();
  const Array got = run_whole(in, 0, {});
  EXPECT_TRUE(std::isnan(got.at(0, 0, 0, 0)));
  for (int64_t b = 1; b < batch; ++b) EXPECT_EQ(got.at(b, 0, 0, 0), want.at(b, 0, 0, 0)) << b;
}

// Rows of more than the 4096 of a block and others, by orders of few states to a lane and of many.
class LongS4d : public testing::TestWithParam<int64_t> {
 protected:
  const attn_plugin& cpu = load(ATTNKIT_PLUGIN_DIR "/s4d.so");
  const attn_plugin& cuda = load(ATTNKIT_EMULATED_DIR "/s4d.so");
  const attn_block causal = make_block(ATTN_DECODER_SELF, true, 1, 3, 3),
                   encoder = make_block(ATTN_ENCODER_SELF, false, 1, 3, 3);
  const Settings settings{{"order", GetParam()}};
  Call call;
  LongS4d() { call.q_len = call.k_len = {5000, 4500, 3000, 70}; }
};
INSTANTIATE_TEST_SUITE_P(Cuda, LongS4d, testing::Values(4, 300),
                         [](const auto& info) { return "OfOrder" + std::to_string(info.param); });

TEST_P(LongS4d, RowsAreSplit) {
  for (const attn_block& block : {causal, encoder})
    expect_rows({cpu, block, settings}, {cuda, block, settings}, 5000, 5000, 0, call);
}

TEST_P(LongS4d, GradientsOfRowsAreSplit) {
  for (const attn_block& block : {causal, encoder}) {
    const Mechanism here(cpu, block, settings), there(cuda, block, settings);
    Inputs in(here, 4, 5000, 5000, 1), same(there, 4, 5000, 5000, 1);
    const auto x = static_cast<size_t>(here.find("x")), o = size_t{here.output()};
    const auto of_x = [&](Inputs& inputs, const Call& of, const auto& give) {
      Training<float> training(inputs, 0, of);
      Gradients<float> grads = training.gradients();
      for (size_t p = 0; p < grads.size(); ++p)
        if (p != x && p != o) grads[p] = {};
      give(grads[o]);
      training.backward(grads);
      return grads[x];
    };
    Array given;
    const auto keep = [&](const Array& random) { given = random; };
    const Array want = of_x(in, call, keep), got = of_x(same, call, keep);
    EXPECT_LE(rms_ratio(got, want), 2 * kGate);
    for (const int64_t b : {0, 1, 2, 3}) {
      const int64_t n = call.q_len[static_cast<size_t>(b)];
      Inputs one = alone(same, b, n, n);
      const Array single = of_x(one, {}, [&](Array& to) {
        to.set([&](int64_t, int64_t h, int64_t i, int64_t c) { return given.at(b, h, i, c); });
      });
      EXPECT_TRUE(same_bits(single, 0, 0, got, b, 0, n)) << b;
    }
  }
}

// Pieces that are split, of which the second begins with what was kept, and others that are not.
TEST_P(LongS4d, StreamInPiecesOfAnySize) {
  expect_pieces({cpu, causal, settings}, {cuda, causal, settings}, {4500, 1, 4200, 74}, "x", 1300);
}

// Of a piece that is split: queries before its first row read what was kept, those beyond its newest read that.
TEST_P(LongS4d, QueriesNeedNoRowOfTheirOwn) {
  const Mechanism here(cpu, causal, settings), there(cuda, causal, settings);
  Inputs in(here, 1, 4310, 4400, 1), same(there, 1, 4310, 4400, 1);
  const auto run = [](const Mechanism& mech, Inputs& inputs) {
    const Planned planned(mech, make_request(1, 4310, 4300, ATTN_STREAM, 100));
    const Arena arena(planned.info().state_bytes, 1);
    Call past, call;
    past.arena = call.arena = &arena;
    past.keys = call.k_from = 100;
    past.q_pos = past.k_pos = {0};
    planned.run(inputs, past);
    call.queries = 4310;
    call.keys = 4300;
    call.q_pos = {97};
    call.k_pos = {100};
    return planned.run(inputs, call);
  };
  const Array want = run(here, in), got = run(there, same);
  EXPECT_LE(rms_ratio(got, want), kGate);
  for (const int64_t i : {0, 1, 4302, 4309}) EXPECT_NEAR(got.at(0, 0, i, 0), want.at(0, 0, i, 0), 1e-5) << i;
}

TEST(S4dVariant, SplitsLongRowsAmongBlocks) {
  const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/s4d.so"), make_block(ATTN_DECODER_SELF, true, 1, 8, 8),
                       {{"order", int64_t{4}}});
  EXPECT_EQ(Planned(mech, make_request(4, 4096, 4096)).info().scratch_bytes, 0u);
  // a state with which each of five segments begins
  EXPECT_EQ(Planned(mech, make_request(4, 4100, 4100)).info().scratch_bytes, 4u * 5 * 8 * (4 + 1) * sizeof(float));
}

}  // namespace
}  // namespace attnkit::test
