// Each CUDA variant beside the mechanism's plugin for the CPU: what the laws of conformance do not reach.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <sstream>

#include "support/oracle.hpp"
#include "support/refusal.hpp"
#include "support/stream.hpp"
#include "support/training.hpp"
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

// Inputs of batch row b alone.
Inputs alone(const Inputs& in, int64_t b, int64_t queries, int64_t keys) {
  Inputs one(*in.mech, 1, queries, keys, 1);
  for (size_t p = 0; p < one.arrays.size(); ++p)
    if (is_taken(*in.mech->ports()[p]) && in.arrays[p].batch > b)
      one.arrays[p].set([&](int64_t, int64_t h, int64_t i, int64_t c) { return in.arrays[p].at(b, h, i, c); });
  return one;
}

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
TEST(BuiltVariant, HasAGradientWhereTheEmulatorHas) {
  for (const std::string& name : names(ATTNKIT_CUDA_NAMES)) {
    const std::string file = ATTNKIT_PLUGIN_DIR "/" + name + "-cuda.so";
    if (!std::ifstream(file)) GTEST_SKIP() << "there is no nvcc here";
    EXPECT_EQ(load(ATTNKIT_EMULATED_DIR "/" + name + ".so").backward == nullptr, load(file).backward == nullptr)
        << name;
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
  const attn_info a = plan(here, 2, 8).info(), b = plan(there, 2, 8).info();
  EXPECT_EQ(a.state_bytes, b.state_bytes);
  EXPECT_EQ(a.flops, b.flops);
  EXPECT_EQ(a.bytes_read, b.bytes_read);
  EXPECT_EQ(a.bytes_written, b.bytes_written);
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
                       make_block(ATTN_ENCODER_SELF, false, 1, 8, 8));
  Inputs in(mech, 1, 4, 4, 1);
  attn_request request = make_request(1, 4, 4, ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL);
  request.device_type = 2;
  const Planned planned(mech, request);
  const Bound<float> bound(planned, in, {.queries = 4, .keys = 4, .q_total = {4}, .k_total = {4}});
  std::vector<attn_tensor> ports(bound.get().ports, bound.get().ports + mech.ports().size());
  for (attn_tensor& t : ports) t.device_type = 2;
  attn_exec exec = *bound.get().exec;
  attn_run run = bound.get();
  run.exec = &exec;
  run.ports = ports.data();
  cudaStream_t other = nullptr;
  emulator::machine().devices = 2;
  cudaSetDevice(1);
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  cudaSetDevice(0);
  exec.stream = reinterpret_cast<uintptr_t>(other);
  attn_error error = empty_error();
  EXPECT_EQ(ATTN_DEVICE, mech.plugin().run(planned.get(), &run, &error));
  EXPECT_TRUE(
      std::string(error.message).ends_with("invalid resource handle: is the stream of the device that is current?"))
      << error.message;
  EXPECT_EQ("", emulator::take_report());  // and what was enqueued is forgotten
  cudaStreamDestroy(other);
  emulator::machine().devices = 1;
}
#endif

Array append(const Planned& plan, Inputs& in, const Arena& arena, int32_t from, int64_t keys, int64_t queries) {
  Call call;
  call.arena = &arena;
  call.k_from = from;
  call.keys = keys;
  call.queries = queries;
  call.q_pos = {0};
  call.k_pos = {from};
  return plan.run(in, call);
}

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
  const attn_info a = Planned(here, request).info(), b = Planned(there, request).info();
  EXPECT_EQ(a.state_bytes, b.state_bytes);
  EXPECT_EQ(a.flops, b.flops);
  EXPECT_EQ(a.bytes_read, b.bytes_read);
  EXPECT_EQ(a.bytes_written, b.bytes_written);
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

// As the CPU has it, each row with the bits of that row alone.
void expect_rows(const Mechanism& here, const Mechanism& there, int64_t queries, int64_t keys, uint32_t flags,
                 const Call& call) {
  const auto batch = static_cast<int64_t>(call.q_len.size());
  Inputs in(here, batch, queries, keys, 1), same(there, batch, queries, keys, 1);
  const Array got = run_whole(same, flags, call);
  EXPECT_LE(rms_ratio(got, run_whole(in, flags, call)), kGate);
  for (int64_t b = 0; b < batch; ++b) {
    const auto row = static_cast<size_t>(b);
    const int64_t n = call.q_len[row], m = call.k_len[row];
    Inputs one = alone(same, b, n, m);
    Call own;
    if (!call.q_total.empty()) own.q_total = {call.q_total[row]};
    if (flags & ATTN_PREFIX) {
      const auto from = call.visible.begin() + b * queries;
      own.visible.assign(from, from + n);
    }
    EXPECT_TRUE(same_bits(run_whole(one, flags, own), 0, 0, got, b, 0, n)) << b;
  }
}

// Streams two rows in these pieces, which the CPU's agree with; a NaN of a port's row stays behind the queries before
// it.
void expect_pieces(const Mechanism& here, const Mechanism& there, const std::vector<int64_t>& pieces, const char* port,
                   int64_t spoilt_row) {
  const int64_t n = std::accumulate(pieces.begin(), pieces.end(), int64_t{0});
  Inputs in(here, 2, n, n, 1), same(there, 2, n, n, 1);
  const attn_request request = make_request(2, n, n, ATTN_STREAM | ATTN_KNOWS_Q_TOTAL, n);
  const Planned first(here, request), second(there, request);
  const auto streamed = [&](const Planned& planned, Inputs& inputs) {
    const Arena arena(planned.info().state_bytes, 2);
    Array all(2, 1, n, in.arrays[here.output()].width);
    int32_t done = 0;
    for (const int64_t piece : pieces) {
      Call call;
      call.arena = &arena;
      call.slots = {1, 0};
      call.q_from = call.k_from = done;
      call.queries = call.keys = piece;
      call.q_pos = call.k_pos = {done, done};
      call.q_total.assign(2, static_cast<double>(n));
      paste(all, planned.run(inputs, call), done);
      done += static_cast<int32_t>(piece);
    }
    return all;
  };
  const Array got = streamed(second, same);
  EXPECT_LE(rms_ratio(got, streamed(first, in)), kGate);
  same[port].at(0, 0, spoilt_row, 1) = NAN;
  const Array after = streamed(second, same);
  EXPECT_TRUE(same_bits(got, 0, 0, after, 0, 0, spoilt_row));
  EXPECT_TRUE(same_bits(got, 1, 0, after, 1, 0, n));
  EXPECT_TRUE(std::isnan(after.at(0, 0, spoilt_row, 1)) && std::isnan(after.at(0, 0, n - 1, 1)));
}

// Rows of more than the 1024 queries or keys of a block, beside shorter ones.  Luna has values of their own and rows of
// P that are no whole four.
class LongRows : public testing::TestWithParam<std::string> {
 protected:
  Mechanism here(const attn_block& block) const {
    return {load(ATTNKIT_PLUGIN_DIR "/" + GetParam() + ".so"), block, settings};
  }
  Mechanism there(const attn_block& block) const {
    return {load(ATTNKIT_EMULATED_DIR "/" + GetParam() + ".so"), block, settings};
  }
  const Settings settings = GetParam() == "luna" ? Settings{{"tied", false}, {"projection", int64_t{6}}} : Settings{};
  const attn_block causal = make_block(ATTN_DECODER_SELF, true, 1, 8, 8),
                   encoder = make_block(ATTN_ENCODER_SELF, false, 1, 8, 8);
};
INSTANTIATE_TEST_SUITE_P(Cuda, LongRows, testing::ValuesIn(names(ATTNKIT_CUDA_LINEAR " luna")),
                         [](const auto& info) { return info.param; });
class LongPrefixes : public LongRows {};
INSTANTIATE_TEST_SUITE_P(Cuda, LongPrefixes, testing::ValuesIn(names(ATTNKIT_CUDA_LINEAR)),
                         [](const auto& info) { return info.param; });

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

// Few queries of a long source, and many of a short one.
TEST(LinearVariant, SplitsEitherSideOfCrossAttention) {
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 2, 8, 8);
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/relu.so"), block), there(load(ATTNKIT_EMULATED_DIR "/relu.so"), block);
  for (const auto& [queries, keys] : {std::pair(3, 2500), {2500, 3}, {1100, 0}}) {
    Inputs in(here, 1, queries, keys, 1), same(there, 1, queries, keys, 1);
    EXPECT_LE(rms_ratio(run_whole(same, 0, {}), run_whole(in, 0, {})), kGate) << queries;
  }
}

TEST(LinearVariant, SplitsLongRowsAmongBlocks) {
  const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/relu.so"), make_block(ATTN_ENCODER_SELF, false, 2, 8, 8));
  EXPECT_EQ(Planned(mech, make_request(3, 1024, 1024)).info().scratch_bytes, 0u);
  // S and z of nothing, of 1024 keys, of 2048 and of all
  EXPECT_EQ(Planned(mech, make_request(3, 2100, 2100)).info().scratch_bytes, 3u * 2 * 4 * (8 * 8 + 8) * sizeof(float));
}

// Of features that follow too, but where a scale is that of all keys.
TEST(LinearVariant, SplitsWhatFollows) {
  const auto scratch = [](const char* name, const Settings& settings, int64_t n) {
    const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/" + std::string(name) + ".so"),
                         make_block(ATTN_ENCODER_SELF, false, 2, 8, 8), settings);
    return Planned(mech, make_request(3, n, n)).info().scratch_bytes;
  };
  for (const char* name : {"latte", "efficient", "performer"}) {
    EXPECT_EQ(scratch(name, {}, 1024), 0u) << name;
    EXPECT_GT(scratch(name, {}, 2100), 0u) << name;
  }
  EXPECT_EQ(scratch("efficient", {}, 2100), 3u * 2 * 4 * (8 * 8 + 2 * 8) * sizeof(float));
  EXPECT_EQ(scratch("performer", {{"stabiliser", "global"}, {"feature_eps", 1e-3}}, 2100), 0u);
}

TEST(LinearVariant, KeepsTheSumsOfWideHeadsInScratch) {
  const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/relu.so"), make_block(ATTN_DECODER_SELF, true, 1, 320, 250));
  EXPECT_GT(Planned(mech, make_request(1, 19, 19)).info().scratch_bytes, 0u);
}

// Of heads whose S stays in global memory, too.  A single number, b2 of leap, is what a sum's terms leave of each
// other: the CPU's is no measure for it.
TEST(LinearVariant, GradientsAreTheCpus) {
  for (const char* name : {"linear", "leap", "latte", "performer"})
    for (const int32_t width : {24, 144}) {
      SCOPED_TRACE(testing::Message() << name << " " << width);
      const attn_block block = make_block(ATTN_DECODER_SELF, true, 1, width, width + 8);
      const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/" + std::string(name) + ".so"), block),
          there(load(ATTNKIT_EMULATED_DIR "/" + std::string(name) + ".so"), block);
      Inputs in(here, 2, 70, 70, 1), same(there, 2, 70, 70, 1);
      Call call;
      call.q_len = call.k_len = {70, 33};
      const Gradients<float> want = backward(in, 0, call), got = backward(same, 0, call);
      for (size_t p = 0; p < want.size(); ++p)
        if (want[p].heads * want[p].rows * want[p].width > 1 && here.ports()[p]->kind != ATTN_OUTPUT)
          EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << here.ports()[p]->name;
    }
}

// More segments than the sums of are kept; queries that see no more keys than those before, one more or a hundred, and
// logits that rise, so that blocks end early.
TEST(LinearVariant, GradientsOfManySegmentsAreTheCpus) {
  const int32_t n = 4500;
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 1, 8, 8);
  const Settings settings{{"cross", true}};
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/latte.so"), block, settings),
      there(load(ATTNKIT_EMULATED_DIR "/latte.so"), block, settings);
  Inputs in(here, 1, n, n, 1), same(there, 1, n, n, 1);
  for (Inputs* inputs : {&in, &same}) {
    Array& k = (*inputs)["latent_k"];
    for (int64_t j = n / 2; j < n; ++j)
      for (int64_t l = 0; l < k.width; ++l) k.at(0, 0, j, l) += 0.25f * static_cast<float>(j - n / 2);
  }
  Call call;
  for (int32_t i = 0; i < n; ++i) call.visible.push_back(std::max(0, i % 1000 < 700 ? i - 40 : i / 100 * 100));
  const Gradients<float> want = backward(in, ATTN_PREFIX, call), got = backward(same, ATTN_PREFIX, call);
  for (const char* name : {"latent_q", "latent_k", "v"}) {
    const auto p = static_cast<size_t>(here.find(name));
    EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << name;
  }
}

// Keys that raise the scale, behind queries that see no more than those before them.  Heads of 256 go a few at a time.
TEST(LinearVariant, AKeyChangesNothingOfThoseThatDoNotSeeIt) {
  struct Case {
    const char *name, *keys;
    int32_t width;
    float times, plus;  // of the keys that all see, of the others
    Settings settings;
  };
  for (const Case& c : {Case{"latte", "latent_k", 8, 1, 200, {{"cross", true}}}, Case{"efficient", "k", 8, 1, 200, {}},
                        Case{"performer", "k", 8, 16, 0, {}}, Case{"performer", "k", 256, 6, 0, {}}}) {
    SCOPED_TRACE(testing::Message() << c.name << " " << c.width);
    const attn_block block = make_block(ATTN_DECODER_CROSS, false, 1, c.width, c.width);
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/" + std::string(c.name) + ".so"), block, c.settings),
        there(load(ATTNKIT_EMULATED_DIR "/" + std::string(c.name) + ".so"), block, c.settings);
    Inputs in(here, 1, 40, 20, 1), same(there, 1, 40, 20, 1);
    for (Inputs* inputs : {&in, &same})
      (*inputs)[c.keys].set([&, k = (*inputs)[c.keys]](int64_t b, int64_t h, int64_t j, int64_t e) {
        return j < 10 ? c.times * k.at(b, h, j, e) : k.at(b, h, j, e) + c.plus;
      });
    Call call;
    for (int32_t i = 0; i < 40; ++i) call.visible.push_back(i < 34 ? 10 : std::min(20, i - 23));
    EXPECT_LE(rms_ratio(run_whole(same, ATTN_PREFIX, call), run_whole(in, ATTN_PREFIX, call)), kGate);
    if (c.width > 64) continue;  // of which performer has no gradients
    const Gradients<float> want = backward(in, ATTN_PREFIX, call), got = backward(same, ATTN_PREFIX, call);
    for (size_t p = 0; p < want.size(); ++p)
      if (here.ports()[p]->kind != ATTN_OUTPUT && want[p].heads * want[p].rows > 0)
        EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << here.ports()[p]->name;
  }
}

// Rows that see more than the 256 keys of a block beside rows that do not, some with few queries, in calls of one
// kernel and of another: as the CPU has it, and each with the bits that it has alone.
void check_few_queries(attn_block block) {
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/softmax.so"), block),
      there(load(ATTNKIT_EMULATED_DIR "/softmax.so"), block);
  const std::vector<int32_t> lengths = {2600, 254, 256, 0};
  const int64_t most = 2700;
  Inputs in(here, 4, most, most, 1), same(there, 4, most, most, 1);
  const auto plan = [&](const Mechanism& mech, int64_t batch, int64_t rows) {
    return Planned(mech, make_request(batch, rows, rows, ATTN_STREAM, most));
  };
  const Planned first = plan(here, 4, most);
  const Arena one(first.info().state_bytes, 4), other(first.info().state_bytes, 4);
  Call prompt;
  prompt.arena = &one;
  prompt.keys = most;
  prompt.k_len = lengths;
  prompt.q_pos = prompt.k_pos = std::vector<int32_t>(4);
  first.run(in, prompt);
  std::memcpy(other.row(0), one.row(0), 4 * one.row_bytes);
  const auto rows = [&](const Arena& arena, const std::vector<int32_t>& counts, std::vector<int32_t> from) {
    Call call;
    call.arena = &arena;
    call.queries = call.keys = *std::max_element(counts.begin(), counts.end());
    call.q_len = call.k_len = counts;
    call.q_pos = call.k_pos = std::move(from);
    return call;
  };
  for (const std::vector<int32_t>& counts : {std::vector<int32_t>{1, 1, 1, 1}, {4, 4, 3, 4}, {4, 20, 1, 2}}) {
    const int64_t n = *std::max_element(counts.begin(), counts.end());
    const Planned here_planned = plan(here, 4, n), planned = plan(there, 4, n);
    EXPECT_GT(planned.info().scratch_bytes, 0u);
    const Arena before(other.row_bytes, 4);
    std::memcpy(before.row(0), other.row(0), 4 * other.row_bytes);
    const Array got = planned.run(same, rows(other, counts, lengths));
    EXPECT_LE(rms_ratio(got, here_planned.run(in, rows(one, counts, lengths))), kGate) << n;
    for (int64_t b = 0; b < 4; ++b) {
      const auto row = static_cast<size_t>(b);
      const Arena own(other.row_bytes, 1);
      std::memcpy(own.row(0), before.row(b), own.row_bytes);
      Inputs alone_in = alone(same, b, most, most);
      const Array want = plan(there, 1, counts[row]).run(alone_in, rows(own, {counts[row]}, {lengths[row]}));
      for (int64_t h = 0; h < 4; ++h) EXPECT_TRUE(same_bits(want, 0, h, got, b, h, counts[row])) << n << " " << b;
    }
  }
}

TEST(SoftmaxVariant, SplitsTheKeysOfFewQueries) {
  attn_block block = make_block(ATTN_DECODER_SELF, true, 4, 8, 8);
  block.kv_heads = 2;
  check_few_queries(block);
}
TEST(SoftmaxVariant, SplitsTheKeysOfOneQuery) { check_few_queries(make_block(ATTN_DECODER_SELF, true, 4, 12, 20)); }

// Of a whole source, whose last key some do not see: a NaN there is theirs alone who do.
TEST(SoftmaxVariant, SplitsTheKeysOfASource) {
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 2, 8, 8);
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/softmax.so"), block),
      there(load(ATTNKIT_EMULATED_DIR "/softmax.so"), block);
  Inputs in(here, 1, 3, 2100, 1), same(there, 1, 3, 2100, 1);
  Call call;
  call.visible = {0, 1030, 2099};
  const Array want = run_whole(in, ATTN_PREFIX, call), got = run_whole(same, ATTN_PREFIX, call);
  EXPECT_LE(rms_ratio(got, want), kGate);
  const Gradients<float> here_given = backward(in, ATTN_PREFIX, call), given = backward(same, ATTN_PREFIX, call);
  for (const char* name : {"q", "k", "v"}) {
    const auto p = static_cast<size_t>(here.find(name));
    EXPECT_LE(rms_ratio(given[p], here_given[p]), 2 * kGate) << name;
  }
  same["k"].at(0, 1, 2099, 0) = same["v"].at(0, 1, 2099, 0) = NAN;
  const Array after = run_whole(same, ATTN_PREFIX, call);
  for (int64_t h = 0; h < 2; ++h) EXPECT_TRUE(same_bits(got, 0, h, after, 0, h, 3));
  same["k"].at(0, 1, 500, 0) = NAN;
  const Array spoilt = run_whole(same, ATTN_PREFIX, call);
  EXPECT_TRUE(same_bits(got, 0, 0, spoilt, 0, 0, 3) && same_bits(got, 0, 1, spoilt, 0, 1, 1));
  EXPECT_TRUE(std::isnan(spoilt.at(0, 1, 1, 0)) && std::isnan(spoilt.at(0, 1, 2, 5)));
}

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

double rms(const Array& a) {
  double squares = 0;
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t c = 0; c < a.width; ++c) squares += std::pow(a.at(0, 0, i, c), 2);
  return std::sqrt(squares / static_cast<double>(a.rows * a.width));
}

// Several tiles of queries, keys and rows of P, heads so wide that their tiles are small, heads of the pack attention
// that are others; rows of P that a short context leaves out may hold anything.  Equal calls give equal bits.
TEST(LunaVariant, GradientsAreTheCpus) {
  struct Case {
    bool causal;
    int32_t width;
    Settings settings;
  };
  const auto number = [](int64_t x) { return x; };
  for (const Case& c :
       {Case{false, 20, {{"projection", number(40)}}}, Case{false, 20, {{"tied", false}, {"pheads", number(5)}}},
        Case{false, 20, {{"contextual", false}, {"pheads", number(8)}}},
        Case{false, 300, {{"tied", false}, {"projection", number(19)}}}, Case{true, 20, {{"projection", number(40)}}},
        Case{true, 20, {{"tied", false}, {"activation", "softplus"}}},
        Case{true, 300, {{"contextual", false}, {"activation", "elu1"}}}}) {
    SCOPED_TRACE(testing::Message() << c.causal << " " << c.width << " " << c.settings.size());
    const attn_block block =
        make_block(c.causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, c.causal, 2, c.width, c.width + 4);
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block, c.settings),
        there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block, c.settings);
    const int64_t keys = c.causal ? 70 : 90;
    Inputs in(here, 3, 70, keys, 1), same(there, 3, 70, keys, 1);
    for (Inputs* inputs : {&in, &same})
      if (!c.causal && here.find("p") >= 0)
        (*inputs)["p"].set([p = (*inputs)["p"]](int64_t b, int64_t h, int64_t i, int64_t x) {
          return b == 1 && i >= 7 ? std::numeric_limits<float>::quiet_NaN() : p.at(b, h, i, x);
        });
    Call call;
    call.q_len = {70, 33, 70};
    call.k_len = {static_cast<int32_t>(keys), 7, 0};
    if (c.causal) call.q_pos = {0, 3, 0};
    EXPECT_LE(rms_ratio(run_whole(same, 0, call), run_whole(in, 0, call)), kGate);
    const Gradients<float> want = backward(in, 0, call), got = backward(same, 0, call), again = backward(same, 0, call);
    for (size_t p = 0; p < want.size(); ++p) {
      const std::string name = here.ports()[p]->name;
      if (is_given(*here.ports()[p])) continue;
      EXPECT_TRUE(same_bits(got[p], again[p])) << name;
      // A bias of keys that are no values gives all logits of a query the same.  Its gradient is zero but for rounding
      // errors of what cancels, which is of the size of k_weight's.
      const bool cancels = name == "k_bias" && here.find("v_bias") >= 0;
      const double size = cancels ? rms(want[static_cast<size_t>(here.find("k_weight"))]) / rms(want[p]) : 1;
      EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate * size) << name;
    }
  }
}

// Few queries of a long source, and many of a short one; heads of the pack attention that are others; P that goes on.
TEST(LunaVariant, SplitsTheKeysOfALongSource) {
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 2, 8, 8);
  for (const Settings& settings :
       {Settings{}, Settings{{"tied", false}, {"pheads", int64_t{4}}, {"projection", int64_t{5}}}}) {
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block, settings),
        there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block, settings);
    for (const auto& [queries, keys] : {std::pair(3, 2500), {2500, 3}, {3, 1025}, {1100, 0}}) {
      Inputs in(here, 1, queries, keys, 1), same(there, 1, queries, keys, 1);
      std::map<std::string, Array> want, got;
      EXPECT_LE(rms_ratio(run_whole(same, 0, {}, 1, &got), run_whole(in, 0, {}, 1, &want)), kGate) << keys;
      EXPECT_LE(rms_ratio(got.at("p"), want.at("p")), kGate) << keys;
    }
  }
}

// A piece that is split, one token, one that just is and one that is none; read after each.
TEST(LunaVariant, SplitsTheKeysOfASourceThatGrows) {
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 2, 8, 8);
  const Settings settings{{"contextual", false}};
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block, settings),
      there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block, settings);
  const int64_t n = 2600;
  Inputs in(here, 1, 3, n, 1), same(there, 1, 3, n, 1);
  const Planned first(here, make_request(1, 3, n, ATTN_STREAM)), second(there, make_request(1, 3, n, ATTN_STREAM));
  const Arena one(first.info().state_bytes, 1), other(second.info().state_bytes, 1);
  int32_t past = 0;
  for (const int64_t piece : {1500, 1, 1025, 74}) {
    EXPECT_LE(rms_ratio(append(second, same, other, past, piece, 3), append(first, in, one, past, piece, 3)), kGate);
    past += static_cast<int32_t>(piece);
  }
}

// Two prompts, split beside ones that are not: each row has the state that it has alone, bit for bit, and the CPU goes
// on.
TEST(LunaVariant, GoesOnAfterLongPrompts) {
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 2, 8, 8);
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block), there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block);
  const int64_t most = 1500;
  const std::vector<std::vector<int32_t>> past = {{0, 0, 0}, {1500, 70, 1}, {2600, 90, 6}};
  Inputs in(here, 3, most, most, 1), same(there, 3, most, most, 1);
  const auto plan = [&](const Mechanism& mech, int64_t batch) {
    return Planned(mech, make_request(batch, most, most, ATTN_STREAM));
  };
  const Planned first = plan(here, 3), second = plan(there, 3), single = plan(there, 1);
  const Arena one(first.info().state_bytes, 3), other(second.info().state_bytes, 3);
  const auto call = [](const Arena& arena, int64_t keys, const std::vector<int32_t>& from) {
    Call c;
    c.arena = &arena;
    c.queries = 3;
    c.keys = keys;
    c.q_pos = c.k_pos = from;
    return c;
  };
  const auto added = [&](size_t prompt, size_t b) { return past[prompt + 1][b] - past[prompt][b]; };
  for (size_t prompt = 0; prompt < 2; ++prompt) {
    const auto run = [&](const Planned& planned, Inputs& inputs, const Arena& arena) {
      Call c = call(arena, most, past[prompt]);
      for (size_t b = 0; b < 3; ++b) c.k_len.push_back(added(prompt, b));
      return planned.run(inputs, c);
    };
    EXPECT_LE(rms_ratio(run(second, same, other), run(first, in, one)), kGate);
  }
  for (size_t b = 0; b < 3; ++b) {
    Inputs row = alone(same, static_cast<int64_t>(b), most, most);
    const Arena own(second.info().state_bytes, 1);
    for (size_t prompt = 0; prompt < 2; ++prompt) single.run(row, call(own, added(prompt, b), {past[prompt][b]}));
    EXPECT_EQ(0, std::memcmp(own.row(0), other.row(static_cast<int64_t>(b)), own.row_bytes)) << b;
  }
  std::memcpy(one.row(0), other.row(0), 3 * one.row_bytes);
  EXPECT_LE(rms_ratio(second.run(same, call(other, 3, past[2])), first.run(in, call(one, 3, past[2]))), kGate);
}

// Causal queries that see but some of many keys, and more queries than keys.
TEST(LunaVariant, SplitsQueriesOfSomeKeys) {
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 1, 8, 8);
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block), there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block);
  Inputs in(here, 4, 1100, 2500, 1), same(there, 4, 1100, 2500, 1);
  Call call;
  call.q_len = {3, 1100, 0, 3};
  call.k_len = {2500, 9, 2500, 2500};
  call.q_pos = {2300, 2, 0, 100};
  EXPECT_LE(rms_ratio(run_whole(same, 0, call), run_whole(in, 0, call)), kGate);
  Inputs none(there, 1, 1100, 0, 1);
  const Array zeros = run_whole(none, 0, {});
  for (int64_t i = 0; i < 1100; ++i) EXPECT_EQ(zeros.at(0, 0, i, 7), 0) << i;
}

// Which begin with what a run that is split saved.
TEST(LunaVariant, GradientsOfLongRowsAreTheCpus) {
  for (const bool causal : {false, true}) {
    const attn_block block = make_block(causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, causal, 1, 8, 8);
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block),
        there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block);
    const int64_t queries = causal ? 1100 : 3;
    Inputs in(here, 1, queries, 1100, 1), same(there, 1, queries, 1100, 1);
    const Gradients<float> want = backward(in, 0, {}), got = backward(same, 0, {});
    for (size_t p = 0; p < want.size(); ++p)
      if (!is_given(*here.ports()[p]))
        EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << here.ports()[p]->name << " " << causal;
  }
}

TEST(LunaVariant, SplitsLongRowsAmongBlocks) {
  const auto scratch = [](bool causal, const Settings& settings, int64_t queries, int64_t keys, uint32_t flags = 0) {
    const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/luna.so"),
                         make_block(causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, causal, 2, 8, 8), settings);
    return Planned(mech, make_request(3, queries, keys, flags)).info().scratch_bytes;
  };
  const Settings untied{{"tied", false}};
  EXPECT_EQ(scratch(true, {}, 1024, 1024), 0u);
  // P W_pq, and sums of nothing, of 1024 keys, of 2048 and of all
  EXPECT_EQ(scratch(true, {}, 2100, 2100), 3u * (16 * 16 + 2 * 4 * 16 * 8) * sizeof(float));
  EXPECT_EQ(scratch(true, untied, 2100, 2100), 3u * (16 * 16 + 2 * 4 * 16 * (8 + 8)) * sizeof(float));
  EXPECT_EQ(scratch(false, {}, 3, 1024, ATTN_STREAM | ATTN_KNOWS_K_TOTAL), 0u);
  // sums, largest and totals of 1024 keys, of 1024 more and of the rest
  EXPECT_EQ(scratch(false, {}, 3, 2100, ATTN_STREAM | ATTN_KNOWS_K_TOTAL),
            3u * 3 * (16 * 16 + 2 * 2 * 16) * sizeof(float));
  EXPECT_EQ(scratch(false, untied, 3, 2100) - scratch(false, untied, 3, 1024),
            3u * 3 * (16 * 16 + 2 * 2 * 16) * sizeof(float));
}

// An infinite value makes outputs infinite, with rows of P that are no whole four and some that do not count, too.
TEST(LunaVariant, InfiniteValuesStayInfinite) {
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 1, 8, 8);
  const Settings settings{{"tied", false}, {"projection", int64_t{6}}};
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block, settings),
      there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block, settings);
  for (const int64_t live : {6, 5, 3}) {
    Inputs in(here, 1, 80, 80, 1), same(there, 1, 80, 80, 1);
    for (Inputs* inputs : {&in, &same}) {
      (*inputs)["v"].at(0, 0, 20, 1) = INFINITY;
      (*inputs)["p"].set([live, p = (*inputs)["p"]](int64_t b, int64_t h, int64_t i, int64_t c) {
        return i < live ? p.at(b, h, i, c) : 0;
      });
    }
    const Array want = run_whole(in, 0, {}), got = run_whole(same, 0, {});
    for (int64_t i = 0; i < 80; ++i)
      for (int64_t c = 0; c < 8; ++c) {
        const float x = want.at(0, 0, i, c), y = got.at(0, 0, i, c);
        EXPECT_EQ(i >= 20 && c == 1, y == INFINITY) << i << " " << c << " " << live;
        EXPECT_TRUE(x == y || std::abs(x - y) < 1e-4f) << i << " " << c << " " << live;
      }
  }
}

TEST(LunaVariant, RefusesGradientsOfAPThatIsTooLong) {
  for (const bool causal : {false, true}) {
    const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/luna.so"),
                         make_block(causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, causal, 1, 64, 64),
                         {{"projection", int64_t{300}}});
    EXPECT_NO_THROW(Planned(mech, make_request(1, 4, 4)));
    expect_refused(mech, make_request(1, 4, 4, ATTN_TRAIN), "the rows of 8 tokens and of P take in a gradient");
  }
}

// Encoders alone.
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
  for (const int64_t n : {0, 37, 80}) {
    const attn_info a = Planned(here, make_request(2, n, n)).info(), b = Planned(there, make_request(2, n, n)).info();
    EXPECT_EQ(a.flops, b.flops);
    EXPECT_EQ(a.bytes_read, b.bytes_read);
    EXPECT_EQ(a.bytes_written, b.bytes_written);
  }
}

TEST_F(BigBirdVariant, ARowDoesNotSeeItsNeighbours) {
  const Mechanism mech(cuda, block, settings(24, 2, 240));
  Inputs in(mech, 5, 240, 240, 1);
  Call call;
  call.q_len = call.k_len = {240, 100, 24, 0, 1};
  const Array got = run_whole(in, 0, call);
  for (int64_t b = 0; b < 5; ++b) {
    const int32_t n = call.q_len[static_cast<size_t>(b)];
    Inputs one(mech, 1, n, n, 1);
    for (size_t p = 0; p < one.arrays.size(); ++p)
      if (is_taken(*mech.ports()[p]) && in.arrays[p].batch == 5)
        one.arrays[p].set([&](int64_t, int64_t h, int64_t i, int64_t c) { return in.arrays[p].at(b, h, i, c); });
    const Array alone = run_whole(one, 0, {});
    for (int64_t h = 0; h < 2 && n > 0; ++h) EXPECT_TRUE(same_bits(alone, 0, h, got, b, h, n)) << n;
  }
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

// Encoders alone.
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
    for (const int64_t n : {0, 7, 8, 9, 80}) {
      const attn_info a = Planned(here, make_request(2, n, n)).info(), b = Planned(there, make_request(2, n, n)).info();
      EXPECT_EQ(a.flops, b.flops);
      EXPECT_EQ(a.bytes_read, b.bytes_read);
      EXPECT_EQ(a.bytes_written, b.bytes_written);
    }
  }
}

// Rows with landmarks beside rows that need none, and one of nothing.
TEST_F(NystromformerVariant, ARowDoesNotSeeItsNeighbours) {
  const Mechanism mech(cuda, block, settings(40, 5));
  Inputs in(mech, 5, 240, 240, 1);
  Call call;
  call.q_len = call.k_len = {240, 100, 40, 0, 1};
  const Array got = run_whole(in, 0, call);
  for (int64_t b = 0; b < 5; ++b) {
    const int32_t n = call.q_len[static_cast<size_t>(b)];
    Inputs one(mech, 1, n, n, 1);
    for (size_t p = 0; p < one.arrays.size(); ++p)
      if (is_taken(*mech.ports()[p]))
        one.arrays[p].set([&, from = in.arrays[p].batch == 5 ? b : 0](int64_t, int64_t h, int64_t i, int64_t c) {
          return in.arrays[p].at(from, h, i, c);
        });
    const Array alone = run_whole(one, 0, {});
    for (int64_t h = 0; h < 2 && n > 0; ++h) EXPECT_TRUE(same_bits(alone, 0, h, got, b, h, n)) << n;
  }
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
