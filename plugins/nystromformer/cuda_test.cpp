// The CUDA variant of nystromformer, which is for encoders alone: landmarks and filters in tiles.
#include <gtest/gtest.h>

#include "cuda/variants.hpp"

namespace attnkit::test {
namespace {

class NystromformerVariant : public testing::Test {
 protected:
  // kernel 0: no convolution.
  static Settings settings(int64_t landmarks, int64_t kernel = 0, int64_t length = 0, int64_t iterations = 6) {
    Settings all{{"landmarks", landmarks}, {"length", length}, {"iterations", iterations}, {"conv", kernel > 0}};
    if (kernel > 0) all["kernel"] = kernel;
    return all;
  }

  const attn_plugin& cuda = load(ATTNKIT_EMULATED_DIR "/nystromformer.so");
  const attn_plugin& cpu = load(ATTNKIT_PLUGIN_DIR "/nystromformer.so");
  const attn_block block = make_block(ATTN_ENCODER_SELF, false, 2, 20, 24);
};

TEST_F(NystromformerVariant, CountsAsTheCpuDoes) {
  for (const int64_t kernel : {0, 5}) {
    const Mechanism here(cpu, block, settings(8, kernel)), there(cuda, block, settings(8, kernel));
    for (const int64_t n : {0, 7, 8, 9, 80})
      expect_equal_costs(Planned(here, make_request(2, n, n)).info(), Planned(there, make_request(2, n, n)).info());
  }
}

// Rows with landmarks beside rows that need none, and one of nothing.
TEST_F(NystromformerVariant, ARowDoesNotSeeItsNeighbours) {
  Call call;
  call.q_len = call.k_len = {240, 100, 40, 0, 1};
  expect_rows({cpu, block, settings(40, 5)}, {cuda, block, settings(40, 5)}, 240, 240, 0, call);
}

TEST_F(NystromformerVariant, TakesWideHeads) {
  for (const int32_t width : {320, 500}) {
    const attn_block wide = make_block(ATTN_ENCODER_SELF, false, 1, width, width - 70);
    const Mechanism here(cpu, wide, settings(20, 3)), there(cuda, wide, settings(20, 3));
    Inputs in(here, 1, 110, 110, 1), same(there, 1, 110, 110, 1);
    EXPECT_LE(rms_ratio(run_whole(same, 0, {}), run_whole(in, 0, {})), kGate);
  }
}

// Several tiles of landmarks; segments that rows end in and before; filters narrower and wider than a thread's taps and
// than the sequence.  Equal calls give equal bits.
TEST_F(NystromformerVariant, GradientsAreTheCpus) {
  struct Case {
    Settings settings;
    int64_t n;
    std::vector<int32_t> lengths;
  };
  for (const Case& c : {Case{settings(8), 77, {77, 70, 6, 0, 8}}, Case{settings(8, 9, 80, 1), 80, {80, 60, 3, 0}},
                        Case{settings(40, 1), 130, {130, 41}}, Case{settings(70, 255), 150, {150, 71}},
                        Case{settings(1, 35), 90, {90}}, Case{settings(64, 7), 50, {50, 0, 31}}}) {
    SCOPED_TRACE(c.n);
    const Mechanism here(cpu, block, c.settings), there(cuda, block, c.settings);
    const auto batch = static_cast<int64_t>(c.lengths.size());
    Inputs in(here, batch, c.n, c.n, 1), same(there, batch, c.n, c.n, 1);
    Call call;
    call.q_len = call.k_len = c.lengths;
    EXPECT_LE(rms_ratio(run_whole(same, 0, call), run_whole(in, 0, call)), kGate);
    const Gradients<float> want = backward(in, 0, call), got = backward(same, 0, call), again = backward(same, 0, call);
    for (size_t p = 0; p < want.size(); ++p) {
      if (is_given(*here.ports()[p])) continue;
      EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << here.ports()[p]->name;
      EXPECT_TRUE(same_bits(got[p], again[p])) << here.ports()[p]->name;
    }
  }
}

}  // namespace
}  // namespace attnkit::test
