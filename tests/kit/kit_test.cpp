// attnkit/plugin.hpp with two mechanisms of a few lines, called through their C tables.
#include <gtest/gtest.h>

#include <attnkit/kernels/gradient.hpp>
#include <attnkit/plugin.hpp>

#include "support/refusal.hpp"
#include "support/training.hpp"

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
    with_real(is_f64(run, o), [&](auto real) { scale<decltype(real)>(run); });
  }
  template <class Real>
  void scale(const attn_run& run) const {
    const View<const Real> values(run, v), factor(run, w), absent(run, none);
    EXPECT_FALSE(absent);
    const View<Real> out(run, o);
    for (int64_t b = 0; b < run.batch; ++b)
      for (int64_t h = 0; h < width.heads; ++h)
        for (int64_t i = 0; i < std::min(run.queries, run.keys); ++i)
          for (int64_t c = 0; c < width.e; ++c) out.row(b, h, i)[c] = factor.row()[0] * values.row(b, h, i)[c];
  }
  void fill(uint32_t, uint64_t, float* data, int64_t) const { data[0] = 3; }

  Widths width;
  Port v, w, o, none;
};

// The same with gradients, in f64 too; saves nothing but a mark.
struct Trained : Scaled {
  using Scaled::Scaled;
  Plan plan(const Request& r, Info& info) const {
    info.train(r, 1, ATTN_ALIGN, ATTN_ALIGN);
    return Scaled::plan(r, info);
  }
  void backward(const Plan&, const attn_grad& grad) const {
    with_real(is_f64(*grad.run, o), [&](auto real) { add<decltype(real)>(grad); });
  }
  template <class Real>
  void add(const attn_grad& grad) const {
    const attn_run& run = *grad.run;
    const View<const Real> values(run, v), factor(run, w), given(grad, o);
    const View<Real> values_grad(grad, v), factor_grad(grad, w);
    for (int64_t b = 0; b < run.batch; ++b)
      for (int64_t h = 0; h < width.heads; ++h)
        for (int64_t i = 0; i < run.keys; ++i)
          for (int64_t c = 0; c < width.e; ++c) {
            const Real g = given.row(b, h, i)[c];
            if (factor_grad) factor_grad.row()[0] += g * values.row(b, h, i)[c];
            if (values_grad) values_grad.row(b, h, i)[c] += g * factor.row()[0];
          }
  }
};

const attn_plugin& scaled() { return Table<Scaled>::table(); }
const attn_plugin& trained() { return Table<Trained>::table(); }
attn_block block() { return make_block(ATTN_ENCODER_SELF, false, 2, 8, 4); }

// One training run of 3 rows and a gradient of ones, any part of which a test may break.
struct Trial {
  explicit Trial(uint32_t flags = ATTN_TRAIN) : request(make_request(1, 3, 3, flags)) {
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
  ~Trial() { trained().plan_free(plan); }
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

// The block that a mechanism was made for, as its table passes it on.
struct Seated : Scaled {
  Seated(const attn_block& b, const Values& values, Ports& ports) : Scaled(b, values, ports) { block = b; }
  static inline attn_block block{};
};

TEST(Create, ReadsNoMoreOfABlockThanTheHostGave) {
  attn_block older = block();
  older.struct_size = offsetof(attn_block, kv_heads);
  older.kv_heads = 77;  // whatever stands behind it
  older.key_width = -1;
  const Mechanism of_an_older_host(Table<Seated>::table(), older);
  EXPECT_EQ(Seated::block.struct_size, sizeof(attn_block));
  EXPECT_EQ(Seated::block.kv_heads, 2u);
  EXPECT_EQ(Seated::block.key_width, 8);
}

struct Deep : Scaled {
  Deep(const attn_block& b, const Values& values, Ports& ports) : Scaled(b, values, ports) {
    ports.learned("deep", {1, 2, 3, 4, 5}, "more dimensions than a tensor has");
  }
};

TEST(Create, RefusesMoreDimensionsThanATensorHas) {
  const Refused refused = conformance::refusal([] { Mechanism(Table<Deep>::table(), block()); });
  EXPECT_EQ(ATTN_INTERNAL, refused.code);
  EXPECT_STREQ("port \"deep\" has 5 dimensions, at most 4 are possible", refused.what());
}

TEST(Create, TakesHeadsOfKeysAndTheirWidth) {
  attn_block sharing = make_block(ATTN_DECODER_SELF, true, 6, 8, 4);
  sharing.kv_heads = 2;
  sharing.key_width = 16;
  const Mechanism made(Table<Seated>::table(), sharing);
  const Widths shares(Seated::block, true), repeats(Seated::block);
  EXPECT_EQ(shares.kv_heads, 2);
  EXPECT_EQ(shares.group(), 3);
  EXPECT_EQ(shares.d, 16);
  EXPECT_EQ(repeats.kv_heads, 6);
  EXPECT_EQ(repeats.group(), 1);
  sharing.kv_heads = 4;
  EXPECT_THROW(Mechanism(Table<Seated>::table(), sharing), Refused) << "4 does not divide 6";
  sharing.kv_heads = 0;
  sharing.key_width = 0;
  const Mechanism plain(Table<Seated>::table(), sharing);
  EXPECT_EQ(Seated::block.kv_heads, 6u);
  EXPECT_EQ(Seated::block.key_width, 8);
}

TEST(Backward, IsOfferedByThoseWhoDefineIt) {
  EXPECT_EQ(nullptr, scaled().backward);
  EXPECT_NE(nullptr, trained().backward);
  expect_refused(Mechanism(scaled(), block()), make_request(1, 3, 3, ATTN_TRAIN), "no backward pass");
  expect_refused(Mechanism(trained(), block()), make_request(1, 3, 3, ATTN_TRAIN | ATTN_STREAM), "whole sequences");
}

TEST(Backward, GivesGradients) {
  Trial t;
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

TEST(Backward, GoesWithF64) {
  attn_request request = make_request(1, 3, 3);
  request.dtype_bits = 64;
  expect_refused(Mechanism(scaled(), block()), request, "f32 only");
  const Mechanism mech(trained(), block());
  Inputs64 in(mech, 1, 3, 3, 1);
  Training<double> training(in, 0, {}, 2);
  EXPECT_EQ(64u, training.info().saved_bytes) << "one number, aligned";
  EXPECT_EQ(3u * 64, training.info().backward_scratch_bytes) << "two workers' and what they share";
  EXPECT_EQ(3 * in["v"].at(0, 1, 2, 3), training.outputs()[2].at(0, 1, 2, 3));
  Gradients<double> grads = training.gradients();
  training.backward(grads);
  EXPECT_EQ(3 * grads[2].at(0, 1, 2, 3), grads[0].at(0, 1, 2, 3));
  request.flags = ATTN_STREAM;
  expect_refused(mech, request, "whole sequences");
}

TEST(Backward, SkipsGradientsThatNobodyAskedFor) {
  Trial t;
  t.tensors[0].data = t.tensors[1].data = nullptr;
  EXPECT_EQ("", t.backward());
}

TEST(Backward, IsCheckedAsARunIs) {
  Trial plain(0);
  EXPECT_TRUE(says(plain.backward(), "made with ATTN_TRAIN"));
  const auto expect = [](const char* part, int32_t where, void (*change)(Trial&)) {
    Trial t;
    change(t);
    EXPECT_TRUE(says(t.backward(), part)) << part;
    EXPECT_EQ(ATTN_INVALID, t.code) << part;
    EXPECT_EQ(where, t.where) << part;
  };
  expect("shorter than its first version", -1, [](Trial& t) { t.grad.struct_size = 8; });
  expect("names no run", -1, [](Trial& t) { t.grad.run = nullptr; });
  expect("names no run", -1, [](Trial& t) { t.grad.grads = nullptr; });
  expect("128", -1, [](Trial& t) { t.exec.scratch_bytes = ATTN_ALIGN; });
  expect("saves 64 bytes", -1, [](Trial& t) { t.run.saved = nullptr; });
  expect("4 keys", -1, [](Trial& t) { t.run.keys = 4; });
  expect("port \"v\"", 0, [](Trial& t) { t.ports[0].shape[3] = 5; });
  expect("gradient of port \"v\"", 0, [](Trial& t) { t.tensors[0].shape[2] = 2; });
  expect("gradient of port \"w\"", 1, [](Trial& t) { t.tensors[1].dtype_bits = 64; });
  expect("gradient of port \"o\"", 2, [](Trial& t) { t.tensors[2].data = nullptr; });
}

// Of two rows and two heads: a, of two numbers, is every head's, b has one number for each head.
TEST(Kit, AddsUpTheGradientsOfWhatIsLearned) {
  Ports ports(2);
  const Port a = ports.learned("a", {2}, "shared"), b = ports.learned("b", {2, 1}, "by head");
  Learned learned;
  learned.add(a, 2, false);
  learned.add(b, 1, true);
  ASSERT_EQ(3, learned.floats());
  const float sums[] = {1, 2, 3, 10, 20, 30, 100, 200, 300, 1000, 2000, 3000};
  Array to_a = Array::stored(*ports.list()[0]), to_b = Array::stored(*ports.list()[1]);
  for (Array* to : {&to_a, &to_b}) to->set([](auto...) { return 0.5f; });
  attn_tensor grads[] = {to_a.tensor(), to_b.tensor()};
  attn_run run{};
  run.batch = 2;
  const attn_grad grad{sizeof grad, 0, &run, grads};
  learned.collect(grad, 2, sums);
  EXPECT_EQ((std::vector{1111.5f, 2222.5f}), std::vector(to_a.data().begin(), to_a.data().begin() + 2));
  EXPECT_EQ((std::vector{303.5f, 3030.5f}), std::vector(to_b.data().begin(), to_b.data().begin() + 2));
  grads[0].data = nullptr;
  learned.collect(grad, 2, sums);
  EXPECT_EQ(1111.5f, to_a.at(0, 0, 0, 0)) << "skipped";
  EXPECT_EQ(606.5f, to_b.at(0, 0, 0, 0)) << "added to";
}

TEST(Kit, StoresTablesOf64Bits) {
  const attn_port port{sizeof port, ATTN_TABLE, 0, 0, 64, 2, "t", "indices", {3, 5}};
  Array table = Array::stored(port);
  const attn_tensor t = table.tensor();
  EXPECT_EQ(64, t.dtype_bits);
  EXPECT_EQ(5, t.stride[0]);
  std::memset(t.data, 1, 3 * 5 * sizeof(int64_t));
  EXPECT_TRUE(table.gaps_intact());
  Array64 wide(table);
  EXPECT_EQ(64, wide.tensor().dtype_bits);
  EXPECT_EQ(0, std::memcmp(wide.tensor().data, t.data, 3 * 5 * sizeof(int64_t)));
  EXPECT_TRUE(same_bits(table, Array(wide)));
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

TEST(Kit, CutsALongMessageAtACharacterAndNoEarlier) {
  attn_error error = empty_error();
  const std::string stray = "why: " + std::string(600, '\x80'), whole = std::string(498, 'x') + "\u00e4";
  attnkit::fail(&error, ATTN_INVALID, stray.c_str());
  EXPECT_GT(std::strlen(error.message), 490u);
  attnkit::fail(&error, ATTN_INVALID, whole.c_str());
  EXPECT_EQ(std::string(498, 'x'), error.message);
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
