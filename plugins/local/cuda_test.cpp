// The CUDA variant of local: windows narrower and wider than a tile.
#include <gtest/gtest.h>

#include "support/stream.hpp"
#include "support/training.hpp"

namespace attnkit::test {
namespace {

// Windows narrower than a tile, as wide and wider, which a stream's pieces leave behind; the ring goes to the CPU and
// back.
TEST(LocalVariant, StreamsPiecesOfAnySizePastTheWindow) {
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 2, 24, 40);
  for (const int64_t window : {1, 5, 64, 90}) {
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/local.so"), block, {{"window", window}}),
        there(load(ATTNKIT_EMULATED_DIR "/local.so"), block, {{"window", window}});
    Inputs in(here, 1, 200, 200, 1), same(there, 1, 200, 200, 1);
    const Array want = run_whole(in, 0, {});
    const attn_request request = make_request(1, 200, 200, ATTN_STREAM);
    const Planned cpu(here, request), cuda(there, request);
    const Arena arena(cuda.info().state_bytes, 1);
    Array got(1, 2, 200, 40);
    int32_t done = 0;
    for (const int64_t n : {1, 4, 70, 3, 5, 100, 1, 16}) {
      Call call;
      call.arena = &arena;
      call.q_from = call.k_from = done;
      call.queries = call.keys = n;
      call.q_pos = call.k_pos = {done};
      paste(got, n == 5 ? cpu.run(in, call) : cuda.run(same, call), done);
      done += static_cast<int32_t>(n);
    }
    EXPECT_LE(rms_ratio(got, want), kGate) << window;
  }
}

TEST(LocalVariant, GradientsAreTheCpus) {
  for (const int64_t window : {3, 40, 90})
    for (const bool causal : {false, true}) {
      const attn_block block = make_block(ATTN_ENCODER_SELF, causal, 2, 20, 24);
      const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/local.so"), block, {{"window", window}}),
          there(load(ATTNKIT_EMULATED_DIR "/local.so"), block, {{"window", window}});
      Inputs in(here, 2, 150, 150, 1), same(there, 2, 150, 150, 1);
      Call call;
      call.q_len = call.k_len = {150, 33};
      const Gradients<float> want = backward(in, 0, call), got = backward(same, 0, call);
      for (size_t p = 0; p < want.size(); ++p)
        if (here.ports()[p]->kind != ATTN_OUTPUT)
          EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << here.ports()[p]->name << " " << window;
    }
}

}  // namespace
}  // namespace attnkit::test
