// attnkit/plugin.hpp with two mechanisms of a few lines, called through their C tables.
#include <gtest/gtest.h>

#include <attnkit/plugin.hpp>

#include "support/runner.hpp"

namespace attnkit::test {
namespace {

// o_i = w v_i for all rows, those past q_len too.
struct Scaled {
  static constexpr About about{.name = "scaled", .summary = "s", .citation = "c", .state_revision = "1"};
  struct Plan {};
  static Options options() { return {}; }

  Scaled(const attn_block& b, const Values&, Ports& ports)
      : width(b),
        v(ports.key("v", width.e, "values")),
        w(ports.learned("w", {1}, "factor")),
        o(ports.output("o", width.e, "w v")) {}

  Plan plan(const Request& r, Info& info) const {
    info.state(r, 24);
    return {};
  }

  void run(const Plan&, const attn_run& run) const {
    const View<const float> values(run, v), factor(run, w), absent(run, none);
    EXPECT_EQ(nullptr, absent.data);
    const View<float> out(run, o);
    for (int64_t b = 0; b < run.batch; ++b)
      for (int64_t h = 0; h < width.heads; ++h)
        for (int64_t i = 0; i < std::min(run.queries, run.keys); ++i)
          for (int64_t c = 0; c < width.e; ++c) out.row(b, h, i)[c] = factor.row()[0] * values.row(b, h, i)[c];
  }
  void fill(uint32_t, uint64_t, float* data, int64_t) const { data[0] = 3; }

  Widths width;
  Port v, w, o, none;
};

// The same with gradients; saves nothing but a mark.
struct Trained : Scaled {
  using Scaled::Scaled;
  Plan plan(const Request& r, Info& info) const {
    info.saved_bytes = r.trains() ? ATTN_ALIGN : 0;
    info.backward_scratch_bytes = r.trains() ? 2 * ATTN_ALIGN : 0;
    return Scaled::plan(r, info);
  }
  void backward(const Plan&, const attn_grad& grad) const {
    const attn_run& run = *grad.run;
    const View<const float> values(run, v), factor(run, w), given(o.of(grad.grads));
    const View<float> values_grad(v.of(grad.grads)), factor_grad(w.of(grad.grads));
    for (int64_t b = 0; b < run.batch; ++b)
      for (int64_t h = 0; h < width.heads; ++h)
        for (int64_t i = 0; i < run.keys; ++i)
          for (int64_t c = 0; c < width.e; ++c) {
            const float g = given.row(b, h, i)[c];
            if (factor_grad.data) factor_grad.row()[0] += g * values.row(b, h, i)[c];
            if (values_grad.data) values_grad.row(b, h, i)[c] = g * factor.row()[0];
          }
  }
};

const attn_plugin& scaled() { return Table<Scaled>::table(); }
const attn_plugin& trained() { return Table<Trained>::table(); }
attn_block block() { return make_block(ATTN_ENCODER_SELF, false, 2, 8, 4); }

// One training run of 3 rows and a gradient of ones, any part of which a test may break.
struct Training {
  explicit Training(uint32_t flags = ATTN_TRAIN) : request(make_request(1, 3, 3, flags)) {
    info.struct_size = sizeof info;
    exec.struct_size = sizeof exec;
    run.struct_size = sizeof run;
    grad.struct_size = sizeof grad;
    attn_error error = empty_error();
    expect_ok(trained().plan(mech.get(), &request, &info, &plan, &error), error);
    for (const Array& a : in.arrays) {
      grads.push_back(a);
      grads.back().set([](int64_t, int64_t, int64_t, int64_t) { return 1.0f; });
    }
    grads[2] = Array(1, 2, 3, 4);
    grads[2].set([](int64_t, int64_t, int64_t, int64_t) { return 1.0f; });
    out = grads[2];
    for (size_t i = 0; i < 3; ++i) {
      ports[i] = (i == 2 ? out : in.arrays[i]).tensor();
      tensors[i] = grads[i].tensor();
    }
    exec.workers = 1;
    exec.scratch = scratch.data();
    exec.scratch_bytes = scratch.size();
    run.exec = &exec;
    run.batch = 1;
    run.queries = run.keys = 3;
    run.ports = ports;
    run.saved = saved.data();
    grad.run = &run;
    grad.grads = tensors;
  }
  ~Training() { trained().plan_free(plan); }
  // The message of a refusal, or "".
  std::string backward() {
    attn_error error = empty_error();
    code = trained().backward(plan, &grad, &error);
    where = error.where;
    return code == ATTN_OK ? "" : error.message;
  }

  const Mechanism mech{trained(), block()};
  Inputs in{mech, 1, 3, 3, 1};
  attn_request request;
  attn_info info{};
  attn_plan* plan = nullptr;
  std::vector<Array> grads;
  Array out;
  attn_tensor ports[3], tensors[3];
  Bytes scratch{2 * ATTN_ALIGN, 0}, saved{ATTN_ALIGN, 0};
  attn_exec exec{};
  attn_run run{};
  attn_grad grad{};
  int32_t code = 0, where = 0;
};

bool says(const std::string& message, const char* part) { return message.find(part) != std::string::npos; }

TEST(Backward, IsOfferedByThoseWhoDefineIt) {
  EXPECT_EQ(nullptr, scaled().backward);
  EXPECT_NE(nullptr, trained().backward);
  const Mechanism mech(scaled(), block());
  EXPECT_THROW(Planned(mech, make_request(1, 3, 3, ATTN_TRAIN)), Refused);
}

TEST(Backward, GivesGradients) {
  Training t;
  ASSERT_EQ("", t.backward());
  float sum = 1;  // LEARNED is added to
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t c = 0; c < 4; ++c) {
        sum += t.in["v"].at(0, h, i, c);
        EXPECT_EQ(3, t.grads[0].at(0, h, i, c));
      }
  EXPECT_NEAR(sum, t.grads[1].at(0, 0, 0, 0), 1e-5);
}

TEST(Backward, SkipsGradientsThatNobodyAskedFor) {
  Training t;
  t.tensors[0].data = t.tensors[1].data = nullptr;
  EXPECT_EQ("", t.backward());
}

TEST(Backward, IsCheckedAsARunIs) {
  Training plain(0);
  EXPECT_TRUE(says(plain.backward(), "made with ATTN_TRAIN"));
  const auto expect = [](const char* part, int32_t where, void (*change)(Training&)) {
    Training t;
    change(t);
    EXPECT_TRUE(says(t.backward(), part)) << part;
    EXPECT_EQ(ATTN_INVALID, t.code) << part;
    EXPECT_EQ(where, t.where) << part;
  };
  expect("shorter than its first version", -1, [](Training& t) { t.grad.struct_size = 8; });
  expect("names no run", -1, [](Training& t) { t.grad.run = nullptr; });
  expect("names no run", -1, [](Training& t) { t.grad.grads = nullptr; });
  expect("128", -1, [](Training& t) { t.exec.scratch_bytes = ATTN_ALIGN; });
  expect("saves 64 bytes", -1, [](Training& t) { t.run.saved = nullptr; });
  expect("4 keys", -1, [](Training& t) { t.run.keys = 4; });
  expect("port \"v\"", 0, [](Training& t) { t.ports[0].shape[3] = 5; });
  expect("gradient of port \"v\"", 0, [](Training& t) { t.tensors[0].shape[2] = 2; });
  expect("gradient of port \"w\"", 1, [](Training& t) { t.tensors[1].dtype_bits = 64; });
  expect("gradient of port \"o\"", 2, [](Training& t) { t.tensors[2].data = nullptr; });
}

TEST(Kit, ClearsRowsThatNobodyAskedFor) {
  const Mechanism mech(scaled(), block());
  Inputs in(mech, 2, 5, 5, 1);
  Call call;
  call.q_len = {3, 5};
  call.k_len = {5, 0};
  const Array out = run_whole(in, 0, call);
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(i < 3 ? 3 * in["v"].at(0, h, i, 1) : 0, out.at(0, h, i, 1)) << i;
      EXPECT_EQ(0, out.at(1, h, i, 1)) << "no key to see";
    }
}

TEST(Kit, CountsTheBytesOfPortsAndState) {
  const Mechanism mech(scaled(), block());
  const attn_info whole = Planned(mech, make_request(2, 5, 7)).info();
  EXPECT_EQ(4u * (2 * 2 * 7 * 4 + 1), whole.bytes_read);
  EXPECT_EQ(4u * 2 * 2 * 5 * 4, whole.bytes_written);
  EXPECT_EQ(0u, Planned(mech, make_request(0, 5, 7)).info().bytes_read);
  const attn_info stream = Planned(mech, make_request(2, 5, 7, ATTN_STREAM)).info();
  EXPECT_EQ(128u, stream.state_bytes) << "24 floats, aligned";
  EXPECT_EQ(whole.bytes_read + 2 * 24 * 4, stream.bytes_read);
  EXPECT_EQ(whole.bytes_written + 2 * 24 * 4, stream.bytes_written);
  EXPECT_EQ(4u * 2 * 2 * 5 * 4, Planned(mech, make_request(2, 5, 0, ATTN_STREAM)).info().bytes_written);
}

TEST(Kit, LaysPartsOutAlignedAndApart) {
  struct Parts {
    float* a;
    double* b;
    float* c;
    Parts(attnkit::Layout& layout, int64_t n)
        : a(layout.take(n)), b(layout.take<double>(n)), c(n > 9 ? layout.take(1) : nullptr) {}
  };
  EXPECT_EQ(64u + 64, attnkit::Layout::measure<Parts>(int64_t{3}));
  EXPECT_EQ(64u + 128 + 64, attnkit::Layout::measure<Parts>(int64_t{10}));
  const Bytes memory(256, 0);
  attnkit::Layout layout(memory.data());
  const Parts parts(layout, 10);
  EXPECT_EQ(memory.data(), parts.a);
  EXPECT_EQ(static_cast<char*>(memory.data()) + 64, reinterpret_cast<char*>(parts.b));
  EXPECT_EQ(static_cast<char*>(memory.data()) + 192, reinterpret_cast<char*>(parts.c));
}

TEST(Kit, FindsTheStateOfARow) {
  float arena[64] = {}, fresh[2] = {1, 1};
  const int32_t slots[] = {2, 0};
  attn_run run{};
  EXPECT_FALSE(State(run));
  EXPECT_EQ(fresh, State(run).head(0, 0, 2, fresh));
  EXPECT_EQ(0, fresh[1]) << "starts empty";
  run.state = arena;
  run.state_stride = 64;
  EXPECT_TRUE(State(run));
  EXPECT_EQ(arena + 16 + 6, State(run).head(1, 3, 2, fresh));
  run.slots = slots;
  EXPECT_EQ(arena + 32 + 6, State(run).head(0, 3, 2, fresh));
}

}  // namespace
}  // namespace attnkit::test
