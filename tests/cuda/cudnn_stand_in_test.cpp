// When softmax is cuDNN's, as the stand-in for it counts, and what is said where there is no device.
#include <gtest/gtest.h>
#include <unistd.h>

#include "cuda/emulator/cudnn.hpp"
#include "cuda/halves.hpp"
#include "support/suite.hpp"
#include "support/training.hpp"

namespace attnkit::test {
namespace {

// The shapes that cuDNN computes: whole sequences of widths that it takes.
class Cudnn : public testing::Test {
 protected:
  const attn_plugin& cuda = load(ATTNKIT_EMULATED_DIR "/softmax.so");
  const Type& f16 = all_halves()[0];
  const InType chosen{f16};
  ~Cudnn() override { emulator::set_cudnn_has_device(true); }

  // Executions of one run.
  uint64_t executions(int32_t width, uint32_t flags, const Call& call) const {
    const Mechanism mech(cuda, make_block(ATTN_DECODER_CROSS, false, 2, width, width));
    Inputs in(mech, 2, 9, 7, 1);
    const uint64_t before = emulator::cudnn_executions();
    run_whole(in, flags, call);
    return emulator::cudnn_executions() - before;
  }
};

TEST_F(Cudnn, ComputesWholeSequences) {
  Call padded, waiting;
  padded.q_len = {9, 3};
  padded.k_len = {0, 7};
  waiting.visible.assign(18, 5);
  EXPECT_EQ(1u, executions(16, 0, {}));
  EXPECT_EQ(1u, executions(16, 0, padded));
  EXPECT_EQ(0u, executions(16, ATTN_PREFIX, waiting)) << "it has no such mask";
  EXPECT_EQ(0u, executions(20, 0, {})) << "it refuses the width";
  unsetenv("ATTNKIT_CUDA_TYPE");
  EXPECT_EQ(0u, executions(16, 0, {})) << "f32";
}

// Of heads that share keys, as the CPU has them; without one that nobody wants, the others are bit for bit the same.
TEST_F(Cudnn, ComputesGradients) {
  for (const auto& [width, expected] : {std::pair(16, 2u), {20, 0u}}) {
    attn_block block = make_block(ATTN_DECODER_CROSS, false, 4, width, width);
    block.kv_heads = 2;
    Call call;
    call.q_len = {9, 3};
    call.k_len = {0, 7};
    const auto gradients = [&](const Mechanism& mech, size_t skipped) {
      Inputs in(mech, 2, 9, 7, 1);
      for (Array& port : in.arrays) round_numbers(port, f16);
      Training<float> training(in, 0, call);
      Gradients<float> all = training.gradients();
      round_numbers(all[static_cast<size_t>(mech.output())], f16);
      if (skipped < 3) all[skipped] = {};
      training.backward(all);
      return all;
    };
    const Mechanism there(cuda, block);
    const uint64_t before = emulator::cudnn_executions();
    const Gradients<float> got = gradients(there, 3);
    EXPECT_EQ(before + expected, emulator::cudnn_executions()) << width;
    for (size_t skipped = 0; skipped < 3; ++skipped) {
      const Gradients<float> some = gradients(there, skipped);
      for (size_t p = 0; p < 3; ++p)
        EXPECT_TRUE(p == skipped || same_bits(got[p], some[p])) << p << " without " << skipped;
    }
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/softmax.so"), block);
    unsetenv("ATTNKIT_CUDA_TYPE");
    const Gradients<float> want = gradients(here, 3);
    setenv("ATTNKIT_CUDA_TYPE", f16.name, 1);
    for (size_t p = 0; p < 3; ++p) EXPECT_LE(rms_ratio(got[p], want[p]), f16.gate) << p << " of " << width;
  }
}

// Its mask knows no positions: a causal run that begins later is not cuDNN's, nor is its gradient.
TEST_F(Cudnn, LeavesPositionsToOurKernels) {
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 2, 16, 16);
  const auto gradients = [&](const Mechanism& mech, Array& out) {
    Inputs in(mech, 1, 6, 9, 1);
    for (Array& port : in.arrays) round_numbers(port, f16);
    Call call;
    call.q_pos = {3};
    Training<float> training(in, 0, call);
    out = training.outputs()[static_cast<size_t>(mech.output())];
    Gradients<float> all = training.gradients();
    training.backward(all);
    return all;
  };
  const Mechanism there(cuda, block), here(load(ATTNKIT_PLUGIN_DIR "/softmax.so"), block);
  Array got_out, want_out;
  const uint64_t before = emulator::cudnn_executions();
  const Gradients<float> got = gradients(there, got_out);
  EXPECT_EQ(before, emulator::cudnn_executions());
  unsetenv("ATTNKIT_CUDA_TYPE");
  const Gradients<float> want = gradients(here, want_out);
  EXPECT_LE(rms_ratio(got_out, want_out), f16.gate);
  for (size_t p = 0; p < 3; ++p) EXPECT_LE(rms_ratio(got[p], want[p]), f16.gate) << p;
}

// Every gradient is written, were there nothing on the other side.
TEST_F(Cudnn, GivesGradientsOfNothing) {
  const Mechanism mech(cuda, make_block(ATTN_DECODER_CROSS, false, 2, 16, 16));
  for (const auto& [queries, keys] : {std::pair(0, 7), {9, 0}}) {
    Inputs in(mech, 2, queries, keys, 1);
    Call call;
    call.queries = queries;
    call.keys = keys;
    Training<float> training(in, make_request(2, 9, 7, ATTN_TRAIN), call);
    Gradients<float> all = training.gradients();
    training.backward(all);
    int64_t zeros = 0;
    for (size_t p = 0; p < 3; ++p)
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t i = 0; i < all[p].rows; ++i)
            for (int64_t c = 0; c < 16; ++c) zeros += all[p].at(b, h, i, c) == 0;
    EXPECT_EQ(2 * 2 * (queries + 2 * keys) * 16, zeros) << queries << " queries";
  }
}

// Padding that holds NaN, runs below the bounds, and rows that see nothing.
TEST_F(Cudnn, PaddingReachesNothing) {
  const Mechanism mech(cuda, make_block(ATTN_DECODER_CROSS, false, 2, 16, 16));
  Inputs in(mech, 3, 9, 7, 1), clean(mech, 3, 9, 7, 1);
  Call call;
  call.queries = 9;
  call.keys = 7;
  call.q_len = {9, 4, 2};
  call.k_len = {5, 7, 0};
  for (const auto& [name, lengths] :
       {std::pair{"q", call.q_len}, std::pair{"k", call.k_len}, std::pair{"v", call.k_len}})
    in[name].set([&, lengths = lengths, before = in[name]](int64_t b, int64_t h, int64_t i, int64_t c) {
      return i < lengths[static_cast<size_t>(b)] ? before.at(b, h, i, c) : NAN;
    });
  const Planned plan(mech, make_request(4, 20, 30));
  const uint64_t before = emulator::cudnn_executions();
  const Array got = plan.run(in, call), want = plan.run(clean, call);
  EXPECT_EQ(before + 2, emulator::cudnn_executions());
  EXPECT_TRUE(same_bits(got, want));
  for (int64_t i = 0; i < 9; ++i) {
    EXPECT_EQ(i >= 4, got.at(1, 1, i, 3) == 0) << i;
    EXPECT_EQ(0, got.at(2, 0, i, 0)) << i;
  }
}

TEST_F(Cudnn, SaysThatThereIsNoDevice) {
  emulator::set_cudnn_has_device(false);
  const Mechanism mech(cuda, make_block(ATTN_DECODER_CROSS, false, 2, 16, 16));
  const Refused refused = refusal(mech, make_request(1, 8, 8));
  EXPECT_EQ(ATTN_DEVICE, refused.code);
  EXPECT_STREQ(
      "cuDNN 9.0.0 cannot start: CUDNN_STATUS_NOT_INITIALIZED, there is no device: is there a GPU, and a driver for "
      "it?",
      refused.what());
  EXPECT_EQ(ATTN_OK, refusal(mech, make_request(1, 8, 8, ATTN_STREAM)).code) << "streams need no cuDNN";
}

// The programs that nvcc made, without a stand-in for anything; on a machine with a GPU it is no test of this.
TEST(BuiltVariant, NeedsADeviceForCudnn) {
  const std::string file = ATTNKIT_PLUGIN_DIR "/softmax-cuda.so";
  if (access(file.c_str(), R_OK) != 0) GTEST_SKIP() << "nvcc made no " << file;
  const Mechanism mech(load(file.c_str()), make_block(ATTN_DECODER_CROSS, false, 2, 16, 16));
  attn_request request = make_request(1, 8, 8);
  request.device_type = 2;
  EXPECT_EQ(ATTN_OK, refusal(mech, request).code) << "f32 is attnkit's own";
  request.dtype_bits = 16;
  const Refused refused = refusal(mech, request);
  if (refused.code == ATTN_OK) GTEST_SKIP() << "there is a GPU, or no cuDNN";
  EXPECT_EQ(ATTN_DEVICE, refused.code);
  EXPECT_NE(std::string::npos, std::string(refused.what()).find("is there a GPU, and a driver for it?"))
      << refused.what();
}

}  // namespace
}  // namespace attnkit::test
