// The CUDA variant of linformer: its gradients.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/refusal.hpp"
#include "support/training.hpp"

namespace attnkit::test {
namespace {

// Several tiles of mixtures, keys and queries, and heads so wide that their tiles are small; equal calls give equal
// bits.
TEST(LinformerVariant, GradientsAreTheCpus) {
  struct Case {
    const char* sharing;
    int32_t width;
    uint32_t flags;
  };
  for (const Case& c : {Case{"heads", 20, 0}, Case{"heads", 20, ATTN_PREFIX}, Case{"per_head_kv", 20, 0},
                        Case{"per_head_kv", 20, ATTN_PREFIX}, Case{"all", 20, 0}, Case{"all", 20, ATTN_PREFIX},
                        Case{"heads", 400, 0}}) {
    SCOPED_TRACE(testing::Message() << c.sharing << " " << c.width << " " << c.flags);
    const attn_block block = make_block(ATTN_DECODER_CROSS, false, 2, c.width, c.width + 4);
    const Settings settings{{"sharing", c.sharing}, {"rank", int64_t{70}}, {"n_max", int64_t{100}}};
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/linformer.so"), block, settings),
        there(load(ATTNKIT_EMULATED_DIR "/linformer.so"), block, settings);
    Inputs in(here, 3, 50, 90, 1), same(there, 3, 50, 90, 1);
    Call call;
    call.q_len = {50, 33, 50};
    call.k_len = {90, 37, 0};
    for (int32_t i = 0; c.flags != 0 && i < 150; ++i) call.visible.push_back(std::min(90, i % 50 / 7 * 16));
    const Gradients<float> want = backward(in, c.flags, call), got = backward(same, c.flags, call),
                           again = backward(same, c.flags, call);
    for (size_t p = 0; p < want.size(); ++p) {
      if (here.ports()[p]->kind == ATTN_OUTPUT) continue;
      EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << here.ports()[p]->name;
      EXPECT_TRUE(same_bits(got[p], again[p])) << here.ports()[p]->name;
    }
  }
}

TEST(LinformerVariant, RefusesGradientsOfHeadsThatAreTooWide) {
  const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/linformer.so"),
                       make_block(ATTN_DECODER_CROSS, false, 1, 1300, 1300));
  EXPECT_NO_THROW(Planned(mech, make_request(1, 4, 4)));
  expect_refused(mech, make_request(1, 4, 4, ATTN_TRAIN), "gradients of heads of 1300 and 1300 numbers do not fit");
}

}  // namespace
}  // namespace attnkit::test
