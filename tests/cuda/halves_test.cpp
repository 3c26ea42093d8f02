// CUDA variants in f16 and bf16 beside the mechanism's plugin for the CPU, which gets the same rounded numbers in f32.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "cuda/emulator/cudnn.hpp"
#include "support/refusal.hpp"
#include "support/stream.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

struct Type {
  const char* name;
  double gate;
  float rounded(float x) const {
    return gate < 2e-3 ? __half2float(__float2half_rn(x)) : __bfloat162float(__float2bfloat16_rn(x));
  }
};
constexpr Type kTypes[] = {{"f16", 1e-3}, {"bf16", 8e-3}};

struct Case {
  std::string mechanism;
  Type type;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  std::istringstream list(ATTNKIT_CUDA_HALVES);
  for (std::string name; list >> name;)
    for (const Type& type : kTypes) all.push_back({name, type});
  return all;
}

void round_inputs(Inputs& in, const Type& type) {
  for (size_t p = 0; p < in.arrays.size(); ++p)
    if (in.mech->ports()[p]->kind == ATTN_QUERY || in.mech->ports()[p]->kind == ATTN_KEY)
      in.arrays[p].set([&type, before = in.arrays[p]](int64_t b, int64_t h, int64_t i, int64_t c) {
        return type.rounded(before.at(b, h, i, c));
      });
}

// While it lives, plans of emulated variants are in this type.
class InType {
 public:
  explicit InType(const Type& type) { setenv("ATTNKIT_CUDA_TYPE", type.name, 1); }
  ~InType() { unsetenv("ATTNKIT_CUDA_TYPE"); }
  InType(const InType&) = delete;
};

class Halves : public testing::TestWithParam<Case> {
 protected:
  const attn_plugin& cuda = load(ATTNKIT_EMULATED_DIR "/" + GetParam().mechanism + ".so");
  const attn_plugin& cpu = load(ATTNKIT_PLUGIN_DIR "/" + GetParam().mechanism + ".so");
  const Type type = GetParam().type;
};
INSTANTIATE_TEST_SUITE_P(Cuda, Halves, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.mechanism + "_" + info.param.type.name; });

TEST_P(Halves, WholeSequencesEqualTheCpu) {
  double worst = 0;
  for (const Situation& s : situations()) {
    SCOPED_TRACE(s.name);
    const uint32_t flags = s.prefix ? ATTN_PREFIX : 0;
    try {
      const Mechanism here(cpu, s.block), there(cuda, s.block);
      Inputs in(here, s.batch, s.queries, s.keys, 3), same(there, s.batch, s.queries, s.keys, 3);
      round_inputs(in, type);
      round_inputs(same, type);
      const Array want = run_whole(in, flags, s.call());
      const InType chosen(type);
      const double error = rms_ratio(run_whole(same, flags, s.call()), want);
      EXPECT_LE(error, type.gate);
      worst = worse(worst, error);
    } catch (const Refused& refused) {
      if (refused.code != ATTN_UNSUPPORTED) throw;
    }
  }
  RecordProperty("error", std::to_string(1e6 * worst) + "e-6");
}

// The state is f32 and the CPU's: a stream begins there and ends in 16 bits.
TEST_P(Halves, StreamsGoOnWhereTheCpuStopped) {
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 3, 24, 40);
  const Mechanism here(cpu, block), there(cuda, block);
  Inputs in(here, 1, 90, 90, 1), same(there, 1, 90, 90, 1);
  round_inputs(in, type);
  round_inputs(same, type);
  const attn_request request = make_request(1, 90, 90, ATTN_STREAM | ATTN_KNOWS_Q_TOTAL);
  const auto run = [](const Planned& plan, Inputs& inputs, const Arena& arena, int32_t from, int64_t count) {
    Call call;
    call.arena = &arena;
    call.q_from = call.k_from = from;
    call.queries = call.keys = count;
    call.q_pos = call.k_pos = {from};
    call.q_total = {90};
    return plan.run(inputs, call);
  };
  const Planned f32(here, request);
  const InType chosen(type);
  const Planned halves(there, request);
  ASSERT_EQ(f32.info().state_bytes, halves.info().state_bytes);
  const Arena one(f32.info().state_bytes, 1), other(f32.info().state_bytes, 1);
  run(f32, in, one, 0, 20);
  std::memcpy(other.row(0), one.row(0), one.stride);
  int32_t done = 20;
  for (const int64_t count : {1, 3, 9, 40, 17}) {
    const Array want = run(f32, in, one, done, count);
    EXPECT_LE(rms_ratio(run(halves, same, other, done, count), want), type.gate) << "after " << done;
    done += static_cast<int32_t>(count);
  }
}

TEST_P(Halves, RefusesToTrain) {
  const Mechanism mech(cuda, make_block(ATTN_DECODER_SELF, true, 2, 16, 16));
  const InType chosen(type);
  const Refused refused = refusal(mech, make_request(1, 8, 8, ATTN_TRAIN | ATTN_KNOWS_Q_TOTAL));
  EXPECT_EQ(ATTN_UNSUPPORTED, refused.code);
}

// What cuDNN computes: whole sequences of widths that it takes.
class Cudnn : public testing::Test {
 protected:
  const attn_plugin& cuda = load(ATTNKIT_EMULATED_DIR "/softmax.so");
  const InType f16{kTypes[0]};
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

// What nvcc made, without a stand-in for anything; on a machine with a GPU it is no test of this.
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
