// The CUDA variant of bigbird, which is for encoders alone: its blocks in tiles, and tables.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cuda/variants.hpp"

namespace attnkit::test {
namespace {

class BigBirdVariant : public testing::Test {
 protected:
  static Settings settings(int64_t block, int64_t random, int64_t length, bool repeats = false) {
    return {{"block", block}, {"random", random}, {"length", length}, {"repeats", repeats}};
  }
  // Writes one number of a table, row by row.
  static void name_block(Inputs& in, size_t at, int32_t t) { std::memcpy(&in["blocks"].data()[at], &t, sizeof t); }

  const attn_plugin& cuda = load(ATTNKIT_EMULATED_DIR "/bigbird.so");
  const attn_plugin& cpu = load(ATTNKIT_PLUGIN_DIR "/bigbird.so");
  const attn_block block = make_block(ATTN_ENCODER_SELF, false, 2, 20, 24);
};

TEST_F(BigBirdVariant, CountsAsTheCpuDoes) {
  const Mechanism here(cpu, block, settings(8, 3, 80)), there(cuda, block, settings(8, 3, 80));
  for (const int64_t n : {0, 37, 80})
    expect_equal_costs(Planned(here, make_request(2, n, n)).info(), Planned(there, make_request(2, n, n)).info());
}

TEST_F(BigBirdVariant, ARowDoesNotSeeItsNeighbours) {
  Call call;
  call.q_len = call.k_len = {240, 100, 24, 0, 1};
  expect_rows({cpu, block, settings(24, 2, 240)}, {cuda, block, settings(24, 2, 240)}, 240, 240, 0, call);
}

TEST_F(BigBirdVariant, TakesWideHeads) {
  for (const int32_t width : {320, 600}) {
    const attn_block wide = make_block(ATTN_ENCODER_SELF, false, 1, width, width - 70);
    const Mechanism here(cpu, wide, settings(20, 1, 120)), there(cuda, wide, settings(20, 1, 120));
    Inputs in(here, 1, 110, 110, 1), same(there, 1, 110, 110, 1);
    EXPECT_LE(rms_ratio(run_whole(same, 0, {}), run_whole(in, 0, {})), kGate);
  }
}

// Blocks of less than a tile, of several tiles and of some and a part; tables that repeat; rows that end anywhere.
TEST_F(BigBirdVariant, GradientsAreTheCpus) {
  struct Case {
    Settings settings;
    int64_t n;
    std::vector<int32_t> lengths;
  };
  for (const Case& c : {Case{settings(7, 4, 77), 77, {77, 70, 6, 0}}, Case{settings(8, 3, 80, true), 80, {80, 60}},
                        Case{settings(40, 1, 240), 240, {240, 170}}, Case{settings(64, 1, 384), 350, {350, 300}},
                        Case{settings(4, 2, 400), 400, {400}}}) {
    const Mechanism here(cpu, block, c.settings), there(cuda, block, c.settings);
    const auto batch = static_cast<int64_t>(c.lengths.size());
    Inputs in(here, batch, c.n, c.n, 1), same(there, batch, c.n, c.n, 1);
    for (Inputs* inputs : {&in, &same})
      for (size_t x = 0; x < 3; ++x) name_block(*inputs, x, x == 0 ? 1 : 3);
    Call call;
    call.q_len = call.k_len = c.lengths;
    const Gradients<float> want = backward(in, 0, call), got = backward(same, 0, call);
    for (size_t p = 0; p < want.size(); ++p)
      if (here.ports()[p]->kind == ATTN_QUERY || here.ports()[p]->kind == ATTN_KEY)
        EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << here.ports()[p]->name << " " << c.n;
  }
}

// Which no one may read before a run on the device.
TEST_F(BigBirdVariant, ATableOfAnotherModelMakesNan) {
  const Mechanism mech(cuda, block, settings(8, 3, 80));
  Inputs in(mech, 1, 80, 80, 1);
  const Array want = run_whole(in, 0, {});
  for (const int32_t t : {-1, 10, 1 << 30}) {
    name_block(in, 3 * (8 + 5) + 2, t);  // of block 6 of head 1
    const Array got = run_whole(in, 0, {});
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 80; ++i) {
        if (h == 1 && i / 8 == 6)
          EXPECT_TRUE(std::isnan(got.at(0, h, i, 0))) << i;
        else
          EXPECT_EQ(want.at(0, h, i, 0), got.at(0, h, i, 0)) << h << " " << i;
      }
  }
}

}  // namespace
}  // namespace attnkit::test
