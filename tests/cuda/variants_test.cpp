// Laws of every CUDA variant beside the mechanism's plugin for the CPU, which those of conformance do not reach.
#include "cuda/variants.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#ifndef ATTNKIT_ON_A_GPU
#include <cuda_runtime.h>

#include "cuda/emulator/emulator.hpp"
#endif

namespace attnkit::test {
namespace {

std::vector<std::string> names(const char* names) {
  std::vector<std::string> all;
  std::istringstream list(names);
  for (std::string name; list >> name;) all.push_back(name);
  return all;
}

constexpr int32_t kTotal = 100;

// Expects that one kernel runs while it lives; on a GPU nobody counts.
struct OneKernel {
#ifndef ATTNKIT_ON_A_GPU
  ~OneKernel() { EXPECT_EQ(before + 1, emulator::kernels_run()); }
  const uint64_t before = emulator::kernels_run();
#endif
};

// As many rows as a server has, in slots of any order and at any position: one kernel for each of the calls that
// `calls` makes of the rows that they begin with.  Some rows have the bits that they have alone.
template <class Plan, class Calls>
void expect_one_kernel_for_thousands(const Mechanism& mech, const Plan& plan, const Calls& calls) {
  const int64_t batch = 2200;
  Inputs in(mech, batch, 3, 3, 1);
  std::vector<int32_t> slots(batch), begun(batch);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937_64(1));
  for (size_t b = 0; b < begun.size(); ++b) begun[b] = static_cast<int32_t>(b % 3);
  const Planned many = plan(mech, batch);
  const Arena arena(many.info().state_bytes, batch);
  Array got;
  for (Call& call : calls(arena, begun)) {
    call.slots = slots;
    [[maybe_unused]] const OneKernel one;
    got = many.run(in, call);
  }
  for (const int64_t b : {int64_t{0}, int64_t{1}, int64_t{1100}, batch - 1}) {
    Inputs one_row = alone(in, b, 3, 3);
    const Planned single = plan(mech, 1);
    const Arena own(single.info().state_bytes, 1);
    Array want;
    for (const Call& call : calls(own, {begun[static_cast<size_t>(b)]})) want = single.run(one_row, call);
    EXPECT_TRUE(same_bits(want, 0, 0, got, b, 0, want.rows)) << b;
    EXPECT_EQ(0, std::memcmp(own.row(0), arena.row(slots[static_cast<size_t>(b)]), own.row_bytes)) << b;
  }
}

class Variant : public testing::TestWithParam<std::string> {
 protected:
  const attn_plugin& cuda = load(ATTNKIT_EMULATED_DIR "/" + GetParam() + ".so");
  const attn_plugin& cpu = load(ATTNKIT_PLUGIN_DIR "/" + GetParam() + ".so");
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 3, 24, 40);

  // A plan for streams, whose length is known: angles may need it.
  static Planned plan(const Mechanism& mech, int64_t batch, int64_t rows) {
    return Planned(mech, make_request(batch, rows, rows, ATTN_STREAM | ATTN_KNOWS_Q_TOTAL, kTotal));
  }
  static Call rows(const Arena& arena, int64_t batch, int32_t from, int64_t count) {
    Call call;
    call.arena = &arena;
    call.q_from = call.k_from = from;
    call.queries = call.keys = count;
    call.q_pos = call.k_pos = std::vector<int32_t>(static_cast<size_t>(batch), from);
    call.q_total.assign(static_cast<size_t>(batch), kTotal);
    return call;
  }
  static Array whole(const Mechanism& mech, Inputs& in) {
    Call call;
    call.q_total.assign(static_cast<size_t>(in.arrays[mech.output()].batch), kTotal);
    return run_whole(in, 0, call);
  }
};
INSTANTIATE_TEST_SUITE_P(Cuda, Variant, testing::ValuesIn(names(ATTNKIT_CUDA_CAUSAL)),
                         [](const auto& info) { return info.param; });

// nvcc's pass for the host sees no body of a kernel's function, and so may see no gradient where the emulator has one.
TEST(BuiltVariant, IsWhatTheEmulatorHas) {
  for (const std::string& name : names(ATTNKIT_CUDA_NAMES)) {
    const std::string file = ATTNKIT_PLUGIN_DIR "/" + name + "-cuda.so";
    if (!std::ifstream(file)) GTEST_SKIP() << "there is no nvcc here";
    const attn_plugin &emulated = load(ATTNKIT_EMULATED_DIR "/" + name + ".so"), &built = load(file);
    EXPECT_EQ(emulated.backward == nullptr, built.backward == nullptr) << name;
    EXPECT_STREQ(emulated.name, built.name);
    EXPECT_STREQ(emulated.state_revision, built.state_revision) << name;
    EXPECT_EQ(2, built.device_type) << name;
  }
}

TEST_P(Variant, RunsKernels) {
  const Mechanism mech(cuda, block);
  Inputs in(mech, 1, 4, 4, 1);
  [[maybe_unused]] const OneKernel one;
  whole(mech, in);
}

TEST_P(Variant, CountsAsTheCpuDoes) {
  const Mechanism here(cpu, block), there(cuda, block);
  expect_equal_costs(plan(here, 2, 8).info(), plan(there, 2, 8).info());
  EXPECT_STREQ(cpu.state_revision, cuda.state_revision);
}

// One token, several, more than a step takes, more than a chunk: all the same but for rounding.
TEST_P(Variant, StreamsInPiecesOfAnySize) {
  const Mechanism here(cpu, block), there(cuda, block);
  Inputs in(here, 2, 70, 70, 1), same(there, 2, 70, 70, 1);
  const Array want = whole(here, in);
  EXPECT_LE(rms_ratio(whole(there, same), want), kGate);
  for (const std::vector<int64_t>& pieces :
       {std::vector<int64_t>{1, 2, 7, 8, 9, 43}, std::vector<int64_t>{31, 1, 1, 32, 5}, std::vector<int64_t>{33, 37}}) {
    const Planned planned = plan(there, 2, 70);
    const Arena arena(planned.info().state_bytes, 2);
    Array got(2, want.heads, 70, want.width);
    int32_t done = 0;
    for (const int64_t n : pieces) {
      paste(got, planned.run(same, rows(arena, 2, done, n)), done);
      done += static_cast<int32_t>(n);
    }
    EXPECT_LE(rms_ratio(got, want), kGate) << pieces.size();
  }
}

// Rows on both sides of where a path ends, each as if it were alone, in slots of any order.
TEST_P(Variant, ARowDoesNotSeeItsNeighbours) {
  const std::vector<int32_t> lengths = {1, 8, 9, 0, 32, 33, 40}, slots = {6, 2, 9, 0, 1, 4, 3};
  const auto batch = static_cast<int64_t>(lengths.size());
  const Mechanism mech(cuda, block);
  Inputs in(mech, batch, 40, 40, 1);
  const Planned many = plan(mech, batch, 40);
  const Arena arena(many.info().state_bytes, 10);
  Call call = rows(arena, batch, 0, 40);
  call.q_len = call.k_len = lengths;
  call.slots = slots;
  const Array got = many.run(in, call);
  for (int64_t b = 0; b < batch; ++b) {
    const auto row = static_cast<size_t>(b);
    Inputs one = alone(in, b, 40, 40);
    const Arena own(many.info().state_bytes, 1);
    const int64_t n = lengths[row];
    const Planned single = plan(mech, 1, n);
    const Array want = single.run(one, rows(own, 1, 0, n));
    for (int64_t h = 0; h < got.heads && n > 0; ++h) EXPECT_TRUE(same_bits(want, 0, h, got, b, h, n)) << "length " << n;
    EXPECT_EQ(0, std::memcmp(own.row(0), arena.row(slots[row]), own.row_bytes)) << "length " << n;
  }
}

TEST_P(Variant, GoesOnWhereTheCpuStopped) {
  const Mechanism here(cpu, block), there(cuda, block);
  Inputs in(here, 1, 60, 60, 1), same(there, 1, 60, 60, 1);
  const Planned first = plan(here, 1, 50), second = plan(there, 1, 50);
  const Arena one(first.info().state_bytes, 1), other(second.info().state_bytes, 1);
  first.run(in, rows(one, 1, 0, 50));
  std::memcpy(other.row(0), one.row(0), one.row_bytes);
  EXPECT_LE(rms_ratio(second.run(same, rows(other, 1, 50, 10)), first.run(in, rows(one, 1, 50, 10))), kGate);
}

// A head that no block can hold as it holds others.
TEST_P(Variant, TakesWideHeads) {
  const attn_block wide = make_block(ATTN_DECODER_SELF, true, 1, 320, 250);
  const Mechanism here(cpu, wide), there(cuda, wide);
  Inputs in(here, 1, 19, 19, 1), same(there, 1, 19, 19, 1);
  EXPECT_LE(rms_ratio(whole(there, same), whole(here, in)), kGate);
}

TEST_P(Variant, WritesForThousandsOfSessionsAtOnce) {
  expect_one_kernel_for_thousands(
      Mechanism(cuda, make_block(ATTN_DECODER_SELF, true, 1, 4, 4)),
      [](const Mechanism& mech, int64_t batch) { return plan(mech, batch, 2); },
      [](const Arena& arena, const std::vector<int32_t>& begun) {
        const auto batch = static_cast<int64_t>(begun.size());
        Call prompts = rows(arena, batch, 0, 2), next = rows(arena, batch, 2, 1);
        prompts.q_len = prompts.k_len = next.q_pos = next.k_pos = begun;
        return std::vector<Call>{prompts, next};
      });
}

#ifndef ATTNKIT_ON_A_GPU  // whose machine is no test's to change
// Of GPUs below Hopper: smaller tiles, or a refusal in words.
TEST_P(Variant, FitsIntoTheSharedMemoryOfTheDevice) {
  emulator::machine().most_shared = 99 * 1024;
  const attn_block wide = make_block(ATTN_DECODER_SELF, true, 1, 128, 128);
  const Mechanism here(cpu, wide), there(cuda, wide);
  Inputs in(here, 1, 40, 40, 1), same(there, 1, 40, 40, 1);
  try {
    EXPECT_LE(rms_ratio(whole(there, same), whole(here, in)), kGate);
  } catch (const Refused& refused) {
    EXPECT_EQ(ATTN_UNSUPPORTED, refused.code);
    EXPECT_NE(std::string(refused.what()).find("101376 bytes"), std::string::npos) << refused.what();
  }
  emulator::machine().most_shared = 227 * 1024;
}

class AnyVariant : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Cuda, AnyVariant, testing::ValuesIn(names(ATTNKIT_CUDA_NAMES)),
                         [](const auto& info) { return info.param; });

TEST_P(AnyVariant, SaysThatAStreamIsOfAnotherDevice) {
  const Mechanism mech(load(ATTNKIT_DEVICE_PLUGINS "/" + GetParam() + "-cuda.so"),
                       make_block(ATTN_ENCODER_SELF, false, 1, 32, 32));
  Inputs in(mech, 1, 4, 4, 1);
  cudaStream_t other = nullptr;
  emulator::machine().devices = 2;
  cudaSetDevice(1);
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  cudaSetDevice(0);
  for (const auto& [code, bits] : {std::pair<uint8_t, uint8_t>{2, 32}, {2, 16}, {4, 16}}) {
    SCOPED_TRACE(testing::Message() << "type " << int{code} << " of " << int{bits} << " bits");
    attn_request request = make_request(1, 4, 4, ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL);
    request.device_type = 2;
    request.dtype_code = code;
    request.dtype_bits = bits;
    const Planned planned(mech, request);
    const Bound<float> bound(planned, in, {.queries = 4, .keys = 4, .q_total = {4}, .k_total = {4}});
    std::vector<attn_tensor> ports(bound.get().ports, bound.get().ports + mech.ports().size());
    for (size_t p = 0; p < ports.size(); ++p) {
      ports[p].device_type = 2;
      if (mech.ports()[p]->kind > ATTN_OUTPUT) continue;
      ports[p].dtype_code = code;
      ports[p].dtype_bits = bits;
      // As a model has it, so that cuDNN takes it as it is.
      const int64_t width = ports[p].shape[3], row = ports[p].shape[1] * width;
      const int64_t strides[] = {ports[p].shape[2] * row, width, row, 1};
      std::copy(strides, strides + 4, ports[p].stride);
    }
    attn_exec exec = *bound.get().exec;
    attn_run run = bound.get();
    run.exec = &exec;
    run.ports = ports.data();
    exec.stream = reinterpret_cast<uintptr_t>(other);
    attn_error error = empty_error();
    EXPECT_EQ(ATTN_DEVICE, mech.plugin().run(planned.get(), &run, &error));
    const bool is_of_cudnn = GetParam() == "softmax" && bits == 16;
    EXPECT_TRUE(std::string(error.message)
                    .ends_with(is_of_cudnn ? "cannot run attention: CUDNN_STATUS_BAD_PARAM, invalid resource handle"
                                           : "invalid resource handle: is the stream of the device that is current?"))
        << error.message;
    EXPECT_EQ("", emulator::take_report());  // and what was enqueued is forgotten
  }
  cudaStreamDestroy(other);
  emulator::machine().devices = 1;
}
#endif

// Those without a causal form, in cross attention.
class CrossVariant : public testing::TestWithParam<std::string> {
 protected:
  const attn_plugin& cuda = load(ATTNKIT_EMULATED_DIR "/" + GetParam() + ".so");
  const attn_plugin& cpu = load(ATTNKIT_PLUGIN_DIR "/" + GetParam() + ".so");
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 3, 24, 40);
};
INSTANTIATE_TEST_SUITE_P(Cuda, CrossVariant, testing::ValuesIn(names(ATTNKIT_CUDA_CROSS)),
                         [](const auto& info) { return info.param; });

TEST_P(CrossVariant, CountsAsTheCpuDoes) {
  const Mechanism here(cpu, block), there(cuda, block);
  const attn_request request = make_request(2, 8, 8, ATTN_STREAM, 40);
  expect_equal_costs(Planned(here, request).info(), Planned(there, request).info());
  EXPECT_STREQ(cpu.state_revision, cuda.state_revision);
}

// There and back again.
TEST_P(CrossVariant, GoesOnWhereTheCpuStopped) {
  const Mechanism here(cpu, block), there(cuda, block);
  Inputs in(here, 1, 11, 70, 1), same(there, 1, 11, 70, 1);
  const attn_request request = make_request(1, 11, 70, ATTN_STREAM);
  const Planned first(here, request), second(there, request);
  const Arena one(first.info().state_bytes, 1), other(second.info().state_bytes, 1);
  append(first, in, one, 0, 33, 0);
  std::memcpy(other.row(0), one.row(0), one.row_bytes);
  EXPECT_LE(rms_ratio(append(second, same, other, 33, 30, 11), append(first, in, one, 33, 30, 11)), kGate);
  std::memcpy(one.row(0), other.row(0), one.row_bytes);
  EXPECT_LE(rms_ratio(append(first, in, one, 63, 7, 11), append(second, same, other, 63, 7, 11)), kGate);
}

TEST_P(CrossVariant, ARowDoesNotSeeItsNeighbours) {
  const Mechanism mech(cuda, block);
  Inputs in(mech, 5, 20, 40, 1);
  Call call;
  call.q_len = {20, 1, 8, 0, 9};
  call.k_len = {40, 7, 0, 3, 32};
  const Array got = run_whole(in, 0, call);
  for (int64_t b = 0; b < 5; ++b) {
    Inputs one = alone(in, b, 20, 40);
    Call own;
    own.q_len = {call.q_len[static_cast<size_t>(b)]};
    own.k_len = {call.k_len[static_cast<size_t>(b)]};
    const Array want = run_whole(one, 0, own);
    for (int64_t h = 0; h < got.heads; ++h) EXPECT_TRUE(same_bits(want, 0, h, got, b, h, 20)) << b;
  }
}

TEST_P(CrossVariant, ReadsAndWritesForThousandsOfSessionsAtOnce) {
  expect_one_kernel_for_thousands(
      Mechanism(cuda, make_block(ATTN_DECODER_CROSS, false, 1, 4, 4)),
      [](const Mechanism& mech, int64_t batch) { return Planned(mech, make_request(batch, 1, 2, ATTN_STREAM)); },
      [](const Arena& arena, const std::vector<int32_t>& read) {
        Call source, query;
        source.arena = query.arena = &arena;
        source.q_pos = source.k_pos = query.q_pos = std::vector<int32_t>(read.size());
        source.keys = 2;
        query.queries = 1;
        source.k_len = query.k_pos = read;
        return std::vector<Call>{source, query};
      });
}

TEST_P(CrossVariant, TakesWideHeads) {
  const attn_block wide = make_block(ATTN_DECODER_CROSS, false, 1, 320, 250);
  const Mechanism here(cpu, wide), there(cuda, wide);
  Inputs in(here, 1, 19, 23, 1), same(there, 1, 19, 23, 1);
  EXPECT_LE(rms_ratio(run_whole(same, 0, {}), run_whole(in, 0, {})), kGate);
}

std::vector<Chosen> linear() {
  std::vector<Chosen> all;
  for (const std::string& name : names(ATTNKIT_CUDA_LINEAR)) all.push_back({name});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cuda, LongRows, testing::ValuesIn(linear()), LongRows::name);
class LongPrefixes : public LongRows {};
INSTANTIATE_TEST_SUITE_P(Cuda, LongPrefixes, testing::ValuesIn(linear()), LongRows::name);

TEST_P(LongRows, OfACausalBlock) {
  Call call;
  call.q_len = call.k_len = {2090, 1030, 70};
  call.q_total = {2090, 1030, 70};
  expect_rows(here(causal), there(causal), 2090, 2090, 0, call);
}

TEST_P(LongPrefixes, EqualTheCpu) {
  Call call;
  call.q_len = call.k_len = {2090, 1030};
  call.q_total = {2090, 1030};
  for (int32_t i = 0; i < 2090; ++i) call.visible.push_back(i < 3 ? 0 : i < 900 ? 2 * i : 1950);
  for (int32_t i = 0; i < 2090; ++i) call.visible.push_back(std::min(1030, i / 40));
  expect_rows(here(encoder), there(encoder), 2090, 2090, ATTN_PREFIX, call);
}

TEST_P(LongRows, OfAnEncoder) {
  Call call;
  call.q_len = call.k_len = {1050, 2090, 1000};
  expect_rows(here(encoder), there(encoder), 2090, 2090, 0, call);
}

// A piece that is split, one token, one that just is and one that is none.
TEST_P(LongRows, StreamInPiecesOfAnySize) {
  expect_pieces(here(causal), there(causal), {1500, 1, 1025, 74}, "v", 1300);
}

}  // namespace
}  // namespace attnkit::test
