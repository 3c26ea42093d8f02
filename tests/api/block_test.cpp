// One mechanism through attnkit_block_*: it computes, and every broken promise of a caller is named.
#include <attnkit/attnkit.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
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

  explicit Fixture(uint32_t role = ATTN_ENCODER_SELF, uint32_t causal = 0, const char* mechanism = "softmax") {
    EXPECT_EQ(attnkit_runtime_create(nullptr, &runtime, &err), ATTN_OK) << err.message;
    const attn_block where{sizeof where, role, causal, heads, heads * width, width};
    EXPECT_EQ(attnkit_block_create(runtime, mechanism, &where, nullptr, &block, &err), ATTN_OK) << err.message;
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

// What relu needs to be trained: saved memory and a gradient for each port.
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
  const attn_block where{sizeof where, ATTN_DECODER_CROSS, 0, 1, 256, 1};
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

TEST(Block, RefusesWhatCannotBeMade) {
  Fixture f;
  attnkit_block* block = nullptr;
  attn_block where{sizeof where, ATTN_ENCODER_SELF, 0, heads, heads * width, width};
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
