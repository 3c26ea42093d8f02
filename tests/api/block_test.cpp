// One mechanism through attnkit_block_*: it computes, and every broken promise of a caller is named.
#include <attnkit/attnkit.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int64_t heads = 2, keys = 5, width = 4;

attn_tensor sequence(float* data, int64_t rows) {
  return {data, {1, heads, rows, width}, {rows * heads * width, width, heads * width, 1}, 2, 32, 1, 4, 1, 0};
}

// A bidirectional block over 5 keys with everything a run needs.
struct Fixture {
  attnkit_runtime* runtime = nullptr;
  attnkit_block* block = nullptr;
  std::vector<float> data = std::vector<float>(4 * keys * heads * width, 0.5f);
  std::vector<attn_tensor> ports;
  attn_request request{};
  attn_run run{};
  attn_error err{sizeof(attn_error), 0, -1, ""};

  explicit Fixture(uint32_t role = ATTN_ENCODER_SELF, uint32_t causal = 0, const char* mechanism = "softmax",
                   const attnkit_runtime_options* options = nullptr, const char* of_mechanism = nullptr) {
    EXPECT_EQ(attnkit_runtime_create(options, &runtime, &err), ATTN_OK) << err.message;
    const attn_block where{sizeof where, role, causal, heads, heads * width, width, 0, 0};
    EXPECT_EQ(attnkit_block_create(runtime, mechanism, &where, of_mechanism, &block, &err), ATTN_OK) << err.message;
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 7) - 2.5f;
    uint32_t n = 0;
    const attn_port* const* declared = attnkit_block_ports(block, &n);
    for (uint32_t i = 0; i < n; ++i) {
      EXPECT_TRUE(declared[i]->kind == ATTN_QUERY || declared[i]->kind == ATTN_KEY || declared[i]->kind == ATTN_OUTPUT);
      ports.push_back(sequence(data.data() + i * keys * heads * width, keys));
    }
    request = {sizeof request, 0, 1, 0, 2, 32, 1, 64, 1, keys, keys, 0};
    run.struct_size = sizeof run;
    run.batch = 1;
    run.queries = run.keys = keys;
    run.ports = ports.data();
  }
  ~Fixture() {
    attnkit_runtime_destroy(runtime);  // the block keeps it alive
    attnkit_block_destroy(block);
  }
  int32_t go() { return attnkit_block_run(block, &request, &run, &err); }
  const float* output() const { return data.data() + 3 * keys * heads * width; }
};

TEST(Block, ComputesSoftmax) {
  Fixture f;
  ASSERT_EQ(f.go(), ATTN_OK) << f.err.message;
  const float *q = f.data.data(), *k = q + keys * heads * width, *v = k + keys * heads * width;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < keys; ++i) {
      double weights[keys], sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double dot = 0;
        for (int64_t c = 0; c < width; ++c) dot += q[(i * heads + h) * width + c] * k[(j * heads + h) * width + c];
        sum += weights[j] = std::exp(dot / 2);
      }
      for (int64_t c = 0; c < width; ++c) {
        double expected = 0;
        for (int64_t j = 0; j < keys; ++j) expected += weights[j] / sum * v[(j * heads + h) * width + c];
        EXPECT_NEAR(f.output()[(i * heads + h) * width + c], expected, 1e-5);
      }
    }
}

// The training needs of relu: saved memory and a gradient for each port.
struct Training : Fixture {
  std::vector<float> grads = std::vector<float>(4 * keys * heads * width, 1.0f);
  std::vector<attn_tensor> tensors;
  void* saved = nullptr;
  attn_grad grad{sizeof(attn_grad), 0, &run, nullptr};

  Training() : Fixture(ATTN_ENCODER_SELF, 0, "relu") {
    request.flags = ATTN_TRAIN;
    for (int64_t i = 0; i < 4; ++i) tensors.push_back(sequence(grads.data() + i * keys * heads * width, keys));
    grad.grads = tensors.data();
    attn_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(attnkit_block_plan(block, &request, &info, &err), ATTN_OK) << err.message;
    run.saved = saved = aligned_alloc(ATTN_ALIGN, (info.saved_bytes + 2 * ATTN_ALIGN) / ATTN_ALIGN * ATTN_ALIGN);
  }
  ~Training() { free(saved); }
  int32_t back() { return attnkit_block_backward(block, &request, &grad, &err); }
};

TEST(Block, GradientsUseTheRuntimesThreadsToo) {
  Training f;
  ASSERT_EQ(f.go(), ATTN_OK) << f.err.message;
  ASSERT_EQ(f.back(), ATTN_OK) << f.err.message;
  // The gradient of v sums the weights of all queries, which are 1 for each head.
  float sum = 0;
  for (int64_t i = 0; i < keys * heads; ++i) sum += f.grads[static_cast<size_t>((2 * keys * heads + i) * width)];
  EXPECT_NEAR(sum, keys * heads, 1e-4);
  std::fill(f.grads.begin(), f.grads.end() - keys * heads * width, 7.0f);
  f.tensors[0].data = nullptr;
  ASSERT_EQ(f.back(), ATTN_OK) << "a gradient that is left out: " << f.err.message;
  EXPECT_EQ(f.grads[0], 7.0f);
}

TEST(Block, NamesWhatIsWrongWithAGradient) {
  const auto expect_refused = [](Training& f, const char* part) {
    EXPECT_NE(f.back(), ATTN_OK) << part;
    EXPECT_NE(std::string(f.err.message).find(part), std::string::npos) << f.err.message;
  };
  Training f;
  f.run.saved = nullptr;
  EXPECT_EQ(f.go(), ATTN_INVALID) << "nothing to save into";
  expect_refused(f, "saved");
  f.run.saved = f.saved;
  f.tensors[1].shape[2] = keys - 1;
  expect_refused(f, "\"k\" has size 4");
  f.tensors[1].shape[2] = keys;
  f.tensors[3].data = nullptr;
  expect_refused(f, "no data");
  EXPECT_EQ(f.err.where, 3);
  f.grad.grads = nullptr;
  expect_refused(f, "grads");
}

TEST(Block, PlanAnswersUpToTheCallersSize) {
  Fixture f;
  attn_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(attnkit_block_plan(f.block, &f.request, &info, &f.err), ATTN_OK);
  EXPECT_GT(info.flops, 0u);
  attn_info small{};
  std::memset(&small, 0x5a, sizeof small);
  small.struct_size = offsetof(attn_info, scratch_bytes);
  ASSERT_EQ(attnkit_block_plan(f.block, &f.request, &small, &f.err), ATTN_OK);
  EXPECT_EQ(small.flops, 0x5a5a5a5a5a5a5a5aull);
  small.struct_size = 0;
  EXPECT_EQ(attnkit_block_plan(f.block, &f.request, &small, &f.err), ATTN_INVALID);
  EXPECT_NE(std::string(f.err.message).find("info.struct_size 0"), std::string::npos) << f.err.message;
}

TEST(Block, ADeviceIsOneThatCanBe) {
  Fixture f;
  attn_info info{};
  info.struct_size = sizeof info;
  f.request.device_id = -4;  // of the CPU it is not looked at
  EXPECT_EQ(attnkit_block_plan(f.block, &f.request, &info, &f.err), ATTN_OK) << f.err.message;
  f.request.device_type = 2;
  EXPECT_EQ(attnkit_block_plan(f.block, &f.request, &info, &f.err), ATTN_INVALID);
  EXPECT_NE(std::string(f.err.message).find("device id -4"), std::string::npos) << f.err.message;
}

// A folder with a mechanism that says it computes on CUDA, and is here for no other device.
constexpr attnkit_runtime_options of_cuda(int32_t device) {
  return {sizeof(attnkit_runtime_options), 1, ATTNKIT_PLUGINS_OF_CUDA, device, 0};
}

struct OnCuda : Fixture {
  OnCuda() : Fixture(ATTN_ENCODER_SELF, 0, "mean", &options) {
    request.device_type = 2;
    request.device_id = 1;
    for (attn_tensor& t : ports) t.device_type = 2, t.device_id = 1;
    exec.struct_size = sizeof exec;
    exec.workers = 1;
    run.exec = &exec;
  }
  static constexpr attnkit_runtime_options options = of_cuda(2);
  attn_exec exec{};
};

TEST(Block, TensorsAreOnTheDeviceOfTheRequest) {
  OnCuda f;
  EXPECT_EQ(f.go(), ATTN_OK) << f.err.message;
  f.ports[1].device_id = 0;
  EXPECT_EQ(f.go(), ATTN_INVALID);
  EXPECT_STREQ(f.err.message, "port \"out\" is on device 0, the request is for device 1");
  EXPECT_EQ(f.err.where, 1);
  f.ports[1].device_id = 1;
  f.ports[0].device_type = 1;
  EXPECT_EQ(f.go(), ATTN_INVALID);
  EXPECT_STREQ(f.err.message, "port \"v\" is on device type 1, not 2");
}

TEST(Block, IsOfAPluginForTheRuntimesDevice) {
  const attn_block where{sizeof where, ATTN_ENCODER_SELF, 0, heads, heads * width, width, 0, 0};
  const auto refusal = [&](int32_t device, const char* mechanism) {
    attnkit_runtime* runtime = nullptr;
    attnkit_block* block = nullptr;
    attn_error err{sizeof err, 0, -1, ""};
    const attnkit_runtime_options options = of_cuda(device);
    EXPECT_EQ(attnkit_runtime_create(&options, &runtime, &err), ATTN_OK) << err.message;
    EXPECT_EQ(attnkit_block_create(runtime, mechanism, &where, nullptr, &block, &err), ATTN_INVALID);
    EXPECT_EQ(block, nullptr);
    attnkit_runtime_destroy(runtime);
    return std::string(err.message);
  };
  EXPECT_EQ(refusal(1, "mean"), "mechanism \"mean\" is here for CUDA alone: " ATTNKIT_PLUGINS_OF_CUDA "/mean-cuda.so");
  const std::string words = refusal(2, "ssru");
  EXPECT_TRUE(words.starts_with("mechanism \"ssru\" is here for the CPU alone: /")) << words;
}

// The plugin refuses a run with more fields than this version has: what a caller of a later one put there stays out.
TEST(Block, PassesRunsOfThisVersion) {
  constexpr attnkit_runtime_options options{sizeof options, 1, ATTNKIT_PLUGINS_OF_LATER, 1, 0};
  Fixture f(ATTN_ENCODER_SELF, 0, "future", &options);
  struct {
    attn_run known;
    uint64_t more[2];
  } longer{f.run, {7, 7}};
  longer.known.struct_size = sizeof longer;
  EXPECT_EQ(attnkit_block_run(f.block, &f.request, &longer.known, &f.err), ATTN_OK) << f.err.message;
}

TEST(Block, StreamsWithStateInTheCallersMemory) {
  Fixture whole(ATTN_DECODER_SELF, 1, "relu"), stream(ATTN_DECODER_SELF, 1, "relu");
  ASSERT_EQ(whole.go(), ATTN_OK) << whole.err.message;
  stream.request.flags = ATTN_STREAM;
  stream.request.queries = stream.request.keys = 1;
  stream.request.past = keys;
  attn_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(attnkit_block_plan(stream.block, &stream.request, &info, &stream.err), ATTN_OK);
  const uint64_t stride = (info.state_bytes + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
  void* state = aligned_alloc(ATTN_ALIGN, stride);
  std::memset(state, 0, stride);
  stream.run.queries = stream.run.keys = 1;
  stream.run.state = state;
  stream.run.state_stride = stride;
  for (int32_t p = 0; p < keys; ++p) {
    std::vector<attn_tensor> rows;
    for (int64_t i = 0; i < 4; ++i) rows.push_back(sequence(stream.data.data() + (i * keys + p) * heads * width, 1));
    stream.run.ports = rows.data();
    stream.run.q_pos = stream.run.k_pos = &p;
    ASSERT_EQ(stream.go(), ATTN_OK) << stream.err.message;
  }
  for (int64_t i = 0; i < keys * heads * width; ++i) EXPECT_NEAR(stream.output()[i], whole.output()[i], 1e-5);
  free(state);
}

void expect_refused(Fixture& f, const char* part) {
  const std::vector<float> before = f.data;
  EXPECT_EQ(f.go(), ATTN_INVALID) << part;
  EXPECT_NE(std::string(f.err.message).find(part), std::string::npos) << f.err.message;
  EXPECT_EQ(f.data, before) << "a refusal must precede the first write";
}

// Steps of a stream in the caller's memory: what a state, its slots and positions must be.
TEST(Block, NamesWhatIsWrongWithAState) {
  alignas(ATTN_ALIGN) static char memory[1 << 16];
  const auto refused = [&](const char* part, auto&& spoil) {
    Fixture f(ATTN_DECODER_SELF, 1, "relu");
    f.request.flags = ATTN_STREAM;
    f.request.past = keys;
    attn_info info{};
    info.struct_size = sizeof info;
    ASSERT_EQ(attnkit_block_plan(f.block, &f.request, &info, &f.err), ATTN_OK) << f.err.message;
    ASSERT_LE(2 * info.state_bytes, sizeof memory);
    std::memset(memory, 0, sizeof memory);
    f.run.state = memory;
    f.run.state_stride = info.state_bytes;
    spoil(f);
    if (part)
      expect_refused(f, part);
    else
      EXPECT_EQ(f.go(), ATTN_OK) << f.err.message;
  };
  static const int32_t below[] = {-1}, past[] = {1}, full[] = {keys + 1}, position[] = {keys + 1}, visible[keys] = {};
  refused(nullptr, [](Fixture&) {});
  refused("state_stride", [](Fixture& f) { f.run.state_stride -= ATTN_ALIGN; });
  refused("state_stride", [](Fixture& f) { f.run.state_stride += 8; });
  refused("state is not aligned", [](Fixture& f) { f.run.state = memory + 8; });
  refused("slots are counted from 0", [](Fixture& f) { f.run.slots = below; });
  refused("visible is for runs without state", [](Fixture& f) {
    f.run.visible = visible;
    f.run.queries = f.ports[0].shape[2] = f.ports[3].shape[2] = 0;
  });
  refused("exceed the capacity", [](Fixture& f) {
    f.run.q_pos = position;
    f.run.k_pos = full;
  });
  refused("behind the 1 keys before this run", [](Fixture& f) { f.run.k_pos = past; });
}

TEST(Block, RowsThatAppendShareNoSlot) {
  alignas(ATTN_ALIGN) static char memory[1 << 16];
  Fixture f(ATTN_DECODER_SELF, 1, "relu");
  f.request = {sizeof f.request, ATTN_STREAM, 1, 0, 2, 32, 1, 64, 2, 1, 1, keys};
  attn_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(attnkit_block_plan(f.block, &f.request, &info, &f.err), ATTN_OK) << f.err.message;
  for (attn_tensor& t : f.ports) t.shape[0] = 2, t.shape[2] = 1, t.stride[0] = heads * width;
  f.run.batch = 2;
  f.run.queries = f.run.keys = 1;
  f.run.state = memory;
  f.run.state_stride = info.state_bytes;
  const int32_t same[] = {1, 1}, apart[] = {1, 0};
  f.run.slots = same;
  expect_refused(f, "may not share slot 1");
  f.run.slots = apart;
  EXPECT_EQ(f.go(), ATTN_OK) << f.err.message;
}

TEST(Block, PromisesOfARequestAreKept) {
  Fixture total(ATTN_DECODER_SELF, 1, "cosformer");
  total.request.flags = ATTN_KNOWS_Q_TOTAL;
  expect_refused(total, "the request promised q_total");
  Fixture prefix(ATTN_DECODER_CROSS);
  prefix.request.flags = ATTN_PREFIX;
  expect_refused(prefix, "the request promised visible");
}

// wait-k offline: query i sees the first visible[i] keys.
TEST(Block, ShowsEachQueryThePrefixItMaySee) {
  Fixture f(ATTN_DECODER_CROSS);
  f.request.flags = ATTN_PREFIX;
  const int32_t visible[] = {0, 1, 2, 2, 5};
  f.run.visible = visible;
  ASSERT_EQ(f.go(), ATTN_OK) << f.err.message;
  const std::vector<float> got(f.output(), f.output() + keys * heads * width);
  const float* v = f.data.data() + 2 * keys * heads * width;
  for (int64_t c = 0; c < heads * width; ++c) {
    EXPECT_EQ(0.0f, got[c]) << "sees nothing";
    EXPECT_FLOAT_EQ(v[c], got[heads * width + c]) << "sees one key";
  }
  Fixture all(ATTN_DECODER_CROSS);
  ASSERT_EQ(all.go(), ATTN_OK) << all.err.message;
  EXPECT_TRUE(std::equal(got.end() - heads * width, got.end(), all.output() + (keys - 1) * heads * width));
  const int32_t falling[] = {0, 2, 1, 2, 5};
  f.run.visible = falling;
  EXPECT_EQ(f.go(), ATTN_INVALID);
  EXPECT_NE(std::string(f.err.message).find("visible"), std::string::npos) << f.err.message;
}

TEST(Block, KeysBeforeARunNeedAState) {
  Fixture f;
  const int32_t before = 1 << 28;
  f.run.q_pos = f.run.k_pos = &before;
  EXPECT_EQ(f.go(), ATTN_INVALID);
  EXPECT_NE(std::string(f.err.message).find("keys before a run are in its state"), std::string::npos) << f.err.message;
}

TEST(Block, SizesThatOptionsMakeLargeMustFit64Bits) {
  attnkit_runtime* runtime = nullptr;
  attnkit_block* block = nullptr;
  attn_error err{sizeof(attn_error), 0, -1, ""};
  ASSERT_EQ(attnkit_runtime_create(nullptr, &runtime, &err), ATTN_OK) << err.message;
  const attn_block where{sizeof where, ATTN_DECODER_CROSS, 0, 1, 256, 1, 0, 0};
  ASSERT_EQ(attnkit_block_create(runtime, "luna", &where, "projection = 4096", &block, &err), ATTN_OK) << err.message;
  attn_request request{sizeof request, 0, 1, 0, 2, 32, 1, 1, 878237056820, 1, 1, 0};
  attn_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(attnkit_block_plan(block, &request, &info, &err), ATTN_INVALID);
  EXPECT_NE(std::string(err.message).find("do not fit 64 bits"), std::string::npos) << err.message;
  request.batch = 1;
  EXPECT_EQ(attnkit_block_plan(block, &request, &info, &err), ATTN_OK) << err.message;
  attnkit_block_destroy(block);
  attnkit_runtime_destroy(runtime);
}

TEST(Block, NamesWhatIsWrongWithARun) {
  {
    Fixture f;
    f.run.batch = 2;
    expect_refused(f, "batch");
  }
  {
    Fixture f;
    f.run.queries = -1;
    expect_refused(f, "queries");
  }
  {
    Fixture f;
    f.run.keys = keys + 1;
    expect_refused(f, "keys");
  }
  {
    Fixture f;
    f.ports[0].shape[3] = 3;
    expect_refused(f, "\"q\"");
  }
  {
    Fixture f;
    f.ports[1].dtype_bits = 64;
    expect_refused(f, "\"k\"");
  }
  {
    Fixture f;
    f.ports[2].data = nullptr;
    expect_refused(f, "no data");
    EXPECT_EQ(f.err.where, 2);
  }
  {
    Fixture f;
    f.ports[2].stride[3] = 2;
    expect_refused(f, "stride");
  }
  {
    Fixture f;
    f.ports[2].device_type = 2;
    expect_refused(f, "device");
  }
  {
    Fixture f;
    const int32_t bad = keys + 1;
    f.run.q_len = &bad;
    expect_refused(f, "q_len");
  }
  {
    Fixture f;
    const int32_t bad = -1;
    f.run.k_len = &bad;
    expect_refused(f, "k_len");
  }
  {
    Fixture f;
    const double bad = std::numeric_limits<double>::quiet_NaN();
    f.run.q_total = &bad;
    expect_refused(f, "q_total");
  }
  for (const auto& [total, part] : {std::pair(0.0, "q_total[0] is 0"), {keys - 0.5, "beyond q_total"}}) {
    Fixture f(ATTN_DECODER_SELF, 1, "cosformer", nullptr, "beyond = \"error\"");
    f.request.flags = ATTN_KNOWS_Q_TOTAL;
    f.run.q_total = &total;
    expect_refused(f, part);
    const double whole = keys;
    f.run.q_total = &whole;
    EXPECT_EQ(f.go(), ATTN_OK) << f.err.message;
  }
  {
    Fixture f(ATTN_DECODER_SELF, 1, "cosformer");
    f.request.flags = ATTN_KNOWS_Q_TOTAL;
    const double none = 0;
    f.run.q_total = &none;
    f.run.queries = f.ports[0].shape[2] = f.ports[3].shape[2] = 0;
    expect_refused(f, "q_total[0] is 0");  // the keys are of that sequence too
    f.run.keys = f.ports[1].shape[2] = f.ports[2].shape[2] = 0;
    EXPECT_EQ(f.go(), ATTN_OK) << f.err.message;
  }
  {
    Fixture f;
    f.run.struct_size = 8;
    expect_refused(f, "struct_size");
  }
  {
    Fixture f;
    f.run.ports = nullptr;
    expect_refused(f, "ports");
  }
  {
    Fixture f;
    f.request.workers = 0;
    expect_refused(f, "workers");
  }
  {
    Fixture f;
    f.request.batch = -1;
    expect_refused(f, "bound");
  }
  {
    Fixture f;
    char state[64];
    f.run.state = state;
    expect_refused(f, "ATTN_STREAM");
  }
}

// A caller's exec is what a plugin computes in and spreads work with.
TEST(Block, NamesWhatIsWrongWithAnExec) {
  constexpr uint64_t bytes = 4 << 20;
  alignas(ATTN_ALIGN) static char scratch[bytes + ATTN_ALIGN];
  const auto serial = [](uintptr_t, int64_t n, int64_t, attn_task fn, uintptr_t arg) { fn(arg, 0, n, 0); };
  const auto with = [&](auto&& spoil) {
    Fixture f;
    attn_exec exec{sizeof exec, 1, scratch, bytes, 0, 0, serial};
    f.run.exec = &exec;
    const char* part = spoil(exec);
    if (part) return expect_refused(f, part);
    EXPECT_EQ(f.go(), ATTN_OK) << f.err.message;
  };
  with([](attn_exec&) -> const char* { return nullptr; });
  with([](attn_exec& e) { return e.struct_size = 8, "exec.struct_size 8"; });
  with([](attn_exec& e) { return e.workers = 0, "exec.workers 0"; });
  with([](attn_exec& e) { return e.workers = 65, "exec.workers 65"; });
  with([](attn_exec& e) { return e.scratch_bytes = 1, "exec.scratch_bytes 1"; });
  with([](attn_exec& e) { return e.scratch = nullptr, "exec.scratch"; });
  with([](attn_exec& e) { return e.scratch = scratch + 4, "exec.scratch is not aligned"; });
  with([](attn_exec& e) { return e.parallel_for = nullptr, "exec.parallel_for"; });
  Training f;
  attn_exec exec{sizeof exec, 1, scratch, 0, 0, 0, serial};
  ASSERT_EQ(f.go(), ATTN_OK) << f.err.message;
  f.run.exec = &exec;
  EXPECT_EQ(f.back(), ATTN_INVALID);
  EXPECT_NE(std::string(f.err.message).find("exec.scratch_bytes 0"), std::string::npos) << f.err.message;
}

TEST(Block, NamesWhatIsWrongWithARequest) {
  {
    Fixture f;
    f.request.flags = 1u << 9 | ATTN_KNOWS_Q_TOTAL;
    expect_refused(f, "flags 0x200");
  }
  {
    Fixture f;
    f.request.past = 3;
    expect_refused(f, "past 3 without ATTN_STREAM");
  }
  {
    Fixture f;
    f.request.dtype_lanes = 4;
    expect_refused(f, "4 lanes");
  }
  {
    Fixture f;
    f.request.dtype_bits = 4;
    expect_refused(f, "elements of 4 bits");
  }
  {
    const attnkit_runtime_options two{sizeof two, 2, nullptr, 0, 0};
    Fixture f(ATTN_ENCODER_SELF, 0, "softmax", &two);
    f.request.workers = 1;
    expect_refused(f, "request.workers 1 is below the runtime's 2 threads");
  }
}

TEST(Block, NamesWhatARunMustNotBring) {
  {
    Fixture f(ATTN_DECODER_CROSS);
    const int32_t visible[] = {0, 1, 2, 2, 5};
    f.run.visible = visible;
    expect_refused(f, "visible goes with ATTN_PREFIX and only with it");
  }
  Training f;
  f.run.saved = static_cast<char*>(f.saved) + 4;
  expect_refused(f, "run.saved is not aligned");
  f.run.saved = f.saved;
  ASSERT_EQ(f.go(), ATTN_OK) << f.err.message;
  f.request.flags = 0;
  EXPECT_EQ(f.back(), ATTN_INVALID);
  EXPECT_NE(std::string(f.err.message).find("a gradient needs a request with ATTN_TRAIN"), std::string::npos)
      << f.err.message;
}

TEST(Block, FillsTensorsAsTheirPortsDeclareThem) {
  Fixture f;
  const attn_block where{sizeof where, ATTN_ENCODER_SELF, 0, heads, heads * width, width, 0, 0};
  attnkit_block* block = nullptr;
  ASSERT_EQ(attnkit_block_create(f.runtime, "performer", &where, nullptr, &block, &f.err), ATTN_OK) << f.err.message;
  uint32_t n = 0, omega = 0;
  const attn_port* const* ports = attnkit_block_ports(block, &n);
  while (omega < n && ports[omega]->kind != ATTN_TABLE) ++omega;
  ASSERT_LT(omega, n);
  const int64_t rows = ports[omega]->shape[0], columns = ports[omega]->shape[1];
  ASSERT_EQ(ports[omega]->ndim, 2);
  std::vector<float> values(static_cast<size_t>(rows * columns + 1));
  const attn_tensor good{values.data(), {rows, columns}, {columns, 1}, 2, 32, 1, 2, 1, 0};
  const auto fill = [&](uint32_t port, const char* part, auto&& change) {
    attn_tensor t = good;
    change(t);
    EXPECT_EQ(attnkit_block_fill(block, port, 1, &t, &f.err), *part ? ATTN_INVALID : ATTN_OK) << part;
    EXPECT_NE(std::string(f.err.message).find(part), std::string::npos) << f.err.message;
  };
  fill(omega, "", [](attn_tensor&) {});
  fill(0, "port \"q\" is not stored", [](attn_tensor&) {});
  fill(omega, "port \"omega\" has size", [](attn_tensor& t) { t.shape[0] -= 1; });
  fill(omega, "port \"omega\" has stride", [](attn_tensor& t) { t.stride[0] += 1; });
  fill(omega, "port \"omega\" has 3 dimensions", [](attn_tensor& t) { t.ndim = 3; });
  fill(omega, "port \"omega\" has element type 2:64", [](attn_tensor& t) { t.dtype_bits = 64; });
  fill(omega, "port \"omega\" is on device type 2", [](attn_tensor& t) { t.device_type = 2; });
  fill(omega, "port \"omega\" has no data", [](attn_tensor& t) { t.data = nullptr; });
  fill(omega, "not aligned", [](attn_tensor& t) { t.data = static_cast<char*>(t.data) + 1; });
  attnkit_block_destroy(block);
}

TEST(Block, NamesTensorsThatCannotBeRead) {
  {
    Fixture f;
    f.ports[1].data = reinterpret_cast<char*>(f.ports[1].data) + 2;
    expect_refused(f, "\"k\" is not aligned to its elements of 4 bytes");
    EXPECT_EQ(f.err.where, 1);
  }
  {
    Fixture f;
    f.ports[0].dtype_lanes = 4;
    expect_refused(f, "\"q\" has 4 lanes");
  }
}

TEST(Block, OutputsOverlapNothing) {
  const int64_t size = keys * heads * width;
  {
    Fixture f;
    f.ports[3].data = f.data.data();
    expect_refused(f, "\"q\" and the output \"o\" overlap");
    EXPECT_EQ(f.err.where, 3);
  }
  {
    Fixture f;  // its first row is the last one of v
    f.ports[3].data = f.data.data() + 3 * size - heads * width;
    expect_refused(f, "\"v\" and the output \"o\" overlap");
  }
  {
    Fixture f;
    f.ports[3].stride[2] = 0;
    expect_refused(f, "\"o\" overlaps itself");
  }
  {
    Fixture f;
    f.ports[3].stride[1] = width - 1;
    expect_refused(f, "\"o\" overlaps itself");
  }
  {
    Fixture f;  // heads of a row that are longer than the way to the next row
    f.ports[3].stride[1] = (keys - 1) * width;
    f.ports[3].stride[2] = width;
    expect_refused(f, "\"o\" overlaps itself");
  }
  {
    Fixture f;  // inputs may: q, k and v of one tensor, whose rows are all the same
    for (int i = 0; i < 3; ++i) f.ports[static_cast<size_t>(i)].data = f.data.data();
    f.ports[0].stride[2] = 0;
    EXPECT_EQ(f.go(), ATTN_OK) << f.err.message;
  }
  {
    Fixture f, apart;  // all four side by side in each row
    std::vector<float> packed(f.data.size());
    for (size_t p = 0; p < 4; ++p) {
      for (int64_t i = 0; i < keys; ++i)
        std::copy_n(f.data.data() + (static_cast<int64_t>(p) * keys + i) * heads * width, heads * width,
                    packed.data() + (i * 4 + static_cast<int64_t>(p)) * heads * width);
      f.ports[p].data = packed.data() + p * heads * width;
      f.ports[p].stride[2] = 4 * heads * width;
      f.ports[p].stride[0] = 4 * size;
    }
    ASSERT_EQ(f.go(), ATTN_OK) << f.err.message;
    ASSERT_EQ(apart.go(), ATTN_OK) << apart.err.message;
    EXPECT_TRUE(std::equal(apart.output(), apart.output() + heads * width, packed.data() + 3 * heads * width));
  }
}

TEST(Block, OneSharedNumberIsAnOverlap) {
  Fixture f;
  f.ports[1].data = f.ports[0].data;
  f.ports[3].data = static_cast<float*>(f.ports[2].data) - keys * heads * width;
  EXPECT_EQ(f.go(), ATTN_OK) << f.err.message;
  f.ports[3].data = static_cast<float*>(f.ports[3].data) + 1;  // its last number is the first of v
  expect_refused(f, "overlap");
}

// A short row of v within a long one of k does not end what is read.
TEST(Block, AnOutputIsOutsideEveryRowThatBeganBeforeIt) {
  Fixture f;
  const attn_block where{sizeof where, ATTN_ENCODER_SELF, 0, 1, 2, 2, 0, 8};
  attnkit_block* block = nullptr;
  ASSERT_EQ(attnkit_block_create(f.runtime, "softmax", &where, nullptr, &block, &f.err), ATTN_OK) << f.err.message;
  attnkit_block_destroy(std::exchange(f.block, block));
  const auto rows = [](float* data, int64_t n, int64_t length, int64_t step) {
    return attn_tensor{data, {1, 1, n, length}, {step, step, step, 1}, 2, 32, 1, 4, 1, 0};
  };
  float* const k = f.data.data() + 8;
  f.ports = {rows(f.data.data(), 1, 8, 8), rows(k, 2, 8, 16), rows(k + 1, 2, 2, 24), rows(k + 8, 1, 2, 2)};
  f.run.ports = f.ports.data();
  f.run.queries = 1;
  f.run.keys = 2;
  EXPECT_EQ(f.go(), ATTN_OK) << f.err.message;
  f.ports[3].data = k + 4;
  expect_refused(f, "\"k\" and the output \"o\" overlap");
}

TEST(Block, GradientsOverlapNothing) {
  const auto refused = [](Training& f, const char* part) {
    EXPECT_EQ(f.back(), ATTN_INVALID);
    EXPECT_NE(std::string(f.err.message).find(part), std::string::npos) << f.err.message;
  };
  Training f;
  ASSERT_EQ(f.go(), ATTN_OK) << f.err.message;
  f.tensors[1].data = f.tensors[0].data;
  refused(f, "overlap");
  f.tensors[1].data = f.ports[1].data;
  refused(f, "\"k\"");
  f.tensors[1].data = f.tensors[3].data;
  refused(f, "\"o\"");
  f.tensors[1].data = nullptr;
  f.tensors[3].stride[2] = 0;  // the given one may be one row for all
  EXPECT_EQ(f.back(), ATTN_OK) << f.err.message;
}

TEST(Block, RefusesWhatCannotBeMade) {
  Fixture f;
  attnkit_block* block = nullptr;
  attn_block where{sizeof where, ATTN_ENCODER_SELF, 0, heads, heads * width, width, 0, 0};
  const auto make = [&](const char* name, const char* options) {
    return attnkit_block_create(f.runtime, name, &where, options, &block, &f.err);
  };
  EXPECT_NE(make("softmx", nullptr), ATTN_OK);
  EXPECT_NE(std::string(f.err.message).find("softmax"), std::string::npos) << f.err.message;
  EXPECT_NE(make("relu", "guard = 'sometimes'"), ATTN_OK);
  EXPECT_NE(make("relu", "gard = 'add'"), ATTN_OK);
  EXPECT_NE(make("relu", "guard = "), ATTN_OK);
  EXPECT_EQ(make("relu", "guard = 'add', eps = 1e-6"), ATTN_OK) << f.err.message;
  attnkit_block_destroy(block);
  block = nullptr;
  where.heads = 3;
  EXPECT_EQ(make("relu", nullptr), ATTN_INVALID);
  where.heads = heads;
  where.role = 9;
  EXPECT_EQ(make("relu", nullptr), ATTN_INVALID);
  where.role = ATTN_DECODER_CROSS;
  where.causal = 1;
  EXPECT_EQ(make("relu", nullptr), ATTN_INVALID);
  EXPECT_EQ(block, nullptr);
}

TEST(Block, SharesHeadsOfKeys) {
  Fixture f;
  attnkit_block* block = nullptr;
  attn_block where{sizeof where, ATTN_DECODER_SELF, 1, 6, 48, 8, 2, 0};
  const auto make = [&] { return attnkit_block_create(f.runtime, "softmax", &where, nullptr, &block, &f.err); };
  const auto state = [&] {
    const attn_request request = [] {
      attn_request r{};
      r.struct_size = sizeof r;
      r.flags = ATTN_STREAM;
      r.device_type = 1;
      r.dtype_code = 2;
      r.dtype_bits = 32;
      r.dtype_lanes = r.workers = 1;
      r.batch = r.queries = r.keys = 1;
      r.past = 99;
      return r;
    }();
    attn_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(make(), ATTN_OK) << f.err.message;
    EXPECT_EQ(attnkit_block_plan(block, &request, &info, &f.err), ATTN_OK) << f.err.message;
    attnkit_block_destroy(block);
    return info.state_bytes;
  };
  EXPECT_EQ(state(), 100u * 2 * 16 * sizeof(float));
  where.kv_heads = 0;
  EXPECT_EQ(state(), 100u * 6 * 16 * sizeof(float));
  where.kv_heads = 4;
  where.struct_size = offsetof(attn_block, kv_heads);  // of a caller that knows minor 0
  EXPECT_EQ(state(), 100u * 6 * 16 * sizeof(float));
  where.struct_size = sizeof where;
  EXPECT_EQ(make(), ATTN_INVALID);
  EXPECT_STREQ(f.err.message, "block: kv_heads 4 does not divide heads 6");
}

TEST(Block, NullIsAnErrorEverywhere) {
  attn_error err{sizeof err, 0, -1, ""};
  attnkit_block* block = nullptr;
  EXPECT_EQ(attnkit_block_create(nullptr, "relu", nullptr, nullptr, &block, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_block_run(nullptr, nullptr, nullptr, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_block_plan(nullptr, nullptr, nullptr, nullptr), ATTN_INVALID);
  EXPECT_EQ(attnkit_block_fill(nullptr, 0, 0, nullptr, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_block_backward(nullptr, nullptr, nullptr, &err), ATTN_INVALID);
  uint32_t n = 7;
  EXPECT_EQ(attnkit_block_ports(nullptr, &n), nullptr);
  EXPECT_EQ(n, 0u);
  attnkit_block_destroy(nullptr);
}

}  // namespace
