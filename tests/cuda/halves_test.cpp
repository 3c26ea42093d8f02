// CUDA variants in f16 and bf16 beside the mechanism's plugin for the CPU, which gets the same rounded numbers in f32.
#include "cuda/halves.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <sstream>

#include "cuda/variants.hpp"
#include "support/suite.hpp"
#include "support/training.hpp"

namespace attnkit::test {
namespace {

struct Case {
  std::string mechanism;
  Type type;
};

std::vector<Case> cases(const char* names) {
  std::vector<Case> all;
  std::istringstream list(names);
  for (std::string name; list >> name;)
    for (const Type& type : all_halves()) all.push_back({name, type});
  return all;
}

// Of mechanisms that share their kernels, each in one type, by turns: both keep the emulator busy for minutes, and are
// for .ci/nightly and a GPU.
std::vector<Case> in_turns(const char* names) {
  std::vector<Case> all = cases(names);
#ifndef ATTNKIT_ON_A_GPU
  if (std::getenv("ATTNKIT_ALL_TYPES") != nullptr) return all;
  for (size_t i = 0; 2 * i < all.size(); ++i) all[i] = all[2 * i + i % 2];
  all.resize(all.size() / 2);
#endif
  return all;
}

void PrintTo(const Case& c, std::ostream* out) { *out << c.mechanism << " in " << c.type.name; }

class Halves : public testing::TestWithParam<Case> {
 protected:
  const attn_plugin& cuda = load(ATTNKIT_EMULATED_DIR "/" + GetParam().mechanism + ".so");
  const attn_plugin& cpu = load(ATTNKIT_PLUGIN_DIR "/" + GetParam().mechanism + ".so");
  const Type type = GetParam().type;
};
INSTANTIATE_TEST_SUITE_P(Cuda, Halves, testing::ValuesIn(cases(ATTNKIT_CUDA_NAMES)),
                         [](const auto& info) { return info.param.mechanism + "_" + info.param.type.name; });

// In every situation, with heads as they are there, or all of that width.  Returns the largest error.
double expect_whole_sequences_of_the_cpu(const attn_plugin& cpu, const attn_plugin& cuda, const Type& type,
                                         int32_t width = 0) {
  double worst = 0;
  for (const Situation& s : situations()) {
    SCOPED_TRACE(testing::Message() << s.name << ", width " << width);
    const uint32_t flags = s.prefix ? ATTN_PREFIX : 0;
    try {
      attn_block block = s.block;
      if (width > 0) block = make_block(block.role, block.causal != 0, block.heads, width, width);
      // A variant that takes each head of keys repeated is given as many to begin with.
      if (Mechanism(cuda, block).ports()[1]->shape[1] == block.heads) block.kv_heads = block.heads;
      const Mechanism here(cpu, block), there(cuda, block);
      Inputs in(here, s.batch, s.queries, s.keys, 3), same(there, s.batch, s.queries, s.keys, 3);
      round_inputs(in, type);
      round_inputs(same, type);
      const Array want = run_whole(in, flags, s.call());
      const InType chosen(type);
      const double error = rms_ratio(run_whole(same, flags, s.call()), want);
      EXPECT_LE(error, type.gate);
      EXPECT_GT(error, 0) << "nothing was rounded";
      worst = worse(worst, error);
    } catch (const Refused& refused) {
      if (refused.code != ATTN_UNSUPPORTED) throw;
    }
  }
  return worst;
}

TEST_P(Halves, WholeSequencesEqualTheCpu) {
  const double worst = expect_whole_sequences_of_the_cpu(cpu, cuda, type);
  RecordProperty("error", std::to_string(1e6 * worst) + "e-6");
}

// Gradients of rounded inputs and of rounded gradients of the output; prepare may change both before that.
using Prepare = std::function<void(Inputs&, Array* given)>;
Gradients<float> rounded_gradients(const Mechanism& mech, const Type& type, int64_t batch, int64_t n, uint32_t flags,
                                   const Call& call, const Prepare& prepare = nullptr) {
  Inputs in(mech, batch, n, n, 5);
  if (prepare) prepare(in, nullptr);
  round_inputs(in, type);
  Training<float> training(in, flags, call);
  Gradients<float> grads = training.gradients();
  Array& given = grads[mech.output()];
  if (prepare) prepare(in, &given);
  round_numbers(given, type);
  training.backward(grads);
  return grads;
}

// Of the same rounded numbers; packed as a model has them, strided, padded, and with prefixes.  Returns the largest
// error of n rows of heads of that width.
double expect_gradients_of_the_cpu(const attn_plugin& cpu, const attn_plugin& cuda, const Type& type, int32_t width,
                                   int32_t n) {
  struct Form {
    uint32_t role, flags;
    bool causal;
    Call call;
  };
  Call padded, prefixes;
  padded.q_len = {n, n / 3 + 1, 0};
  padded.k_len = {n, n / 3 + 1, 3};
  padded.q_total = prefixes.q_total = {double(n), n / 3 + 1.0, 1};
  for (int32_t i = 0; i < 3 * n; ++i) prefixes.visible.push_back(i % n);
  double worst = 0;
  int compared = 0;
  for (const auto& [role, flags, causal, call] :
       {Form{ATTN_ENCODER_SELF, 0, false, {}}, Form{ATTN_ENCODER_SELF, 0, false, padded},
        Form{ATTN_DECODER_SELF, 0, true, {}}, Form{ATTN_DECODER_SELF, 0, true, padded},
        Form{ATTN_DECODER_CROSS, ATTN_PREFIX, false, prefixes}}) {
    SCOPED_TRACE(testing::Message() << "role " << role << " flags " << flags << " padded " << !call.q_len.empty()
                                    << " width " << width);
    try {
      const attn_block block = make_block(role, causal, 2, width, width);
      const Mechanism here(cpu, block), there(cuda, block);
      const Gradients<float> want = rounded_gradients(here, type, 3, n, flags, call);
      const InType chosen(type);
      const Gradients<float> got = rounded_gradients(there, type, 3, n, flags, call);
      for (size_t p = 0; p < want.size(); ++p) {
        const attn_port& port = *here.ports()[p];
        if (want[p].heads * want[p].rows * want[p].width <= 1 || port.kind == ATTN_OUTPUT) continue;
        const double error = rms_ratio(got[p], want[p]);
        EXPECT_LE(error, type.gate) << port.name;
        worst = worse(worst, error);
        ++compared;
      }
    } catch (const Refused& refused) {
      if (refused.code != ATTN_UNSUPPORTED) throw;
    }
  }
  EXPECT_GT(compared, 0);
  EXPECT_GT(worst, 0) << "nothing was rounded";
  return worst;
}

TEST_P(Halves, GradientsEqualTheCpus) {
  const double worst = expect_gradients_of_the_cpu(cpu, cuda, type, 16, 20);
  RecordProperty("error", std::to_string(1e6 * worst) + "e-6");
}

class CausalHalves : public Halves {};
INSTANTIATE_TEST_SUITE_P(Cuda, CausalHalves, testing::ValuesIn(cases(ATTNKIT_CUDA_CAUSAL)),
                         [](const auto& info) { return info.param.mechanism + "_" + info.param.type.name; });

// Promises of linear variants alone: their tiles on the tensor cores drop and hold what 16 bits would not.
class LinearHalves : public Halves {};
INSTANTIATE_TEST_SUITE_P(Cuda, LinearHalves, testing::ValuesIn(in_turns(ATTNKIT_CUDA_LINEAR)),
                         [](const auto& info) { return info.param.mechanism + "_" + info.param.type.name; });

// Of whole sequences of n rows; prepare may change the inputs before they are rounded.
void expect_equal_rows(const Type& type, const Mechanism& here, const Mechanism& there, int64_t batch, int64_t n,
                       const Call& call, const std::function<void(Inputs&)>& prepare = nullptr) {
  Inputs in(here, batch, n, n, 1), same(there, batch, n, n, 1);
  for (Inputs* inputs : {&in, &same}) {
    if (prepare) prepare(*inputs);
    round_inputs(*inputs, type);
  }
  const Array want = run_whole(in, 0, call);
  const InType chosen(type);
  EXPECT_LE(rms_ratio(run_whole(same, 0, call), want), type.gate) << type.name;
}

Call causal_call(int64_t n) {
  Call call;
  call.q_total = {static_cast<double>(n)};
  return call;
}

constexpr std::pair<int32_t, int32_t> kWidths[] = {{24, 40}, {32, 32}, {64, 64}, {128, 128}};

TEST_P(LinearHalves, HiddenValuesMayBeAnything) {
  const InType chosen(type);
  const int64_t n = 70;
  for (const auto& [d, e] : kWidths)
    for (const int64_t from : {5, 40, 64}) {
      const Mechanism mech(cuda, make_block(ATTN_DECODER_SELF, true, 2, d, e));
      Inputs in(mech, 1, n, n, 1);
      const Array want = run_whole(in, 0, causal_call(n));
      in["v"].set([&, before = in["v"]](int64_t b, int64_t h, int64_t i, int64_t c) {
        return i < from ? before.at(b, h, i, c) : i % 2 ? NAN : INFINITY;
      });
      const Array got = run_whole(in, 0, causal_call(n));
      for (int64_t h = 0; h < 2; ++h) EXPECT_TRUE(same_bits(want, 0, h, got, 0, h, from)) << "from " << from;
      EXPECT_TRUE(std::isnan(got.at(0, 0, n - 1, 0)));
    }
}

// Of tiles on the tensor cores, in a stream, which is no cuDNN's.
TEST(TileHalves, HiddenValuesMayBeAnything) {
  const int64_t n = 70;
  for (const Type& type : all_halves())
    for (const char* name : {"softmax", "local"}) {
      const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/" + std::string(name) + ".so"),
                           make_block(ATTN_DECODER_SELF, true, 2, 20, 36));
      const InType chosen(type);
      const Planned plan(mech, make_request(1, n, n, ATTN_STREAM));
      const auto run = [&](Inputs& in) {
        const Arena arena(plan.info().state_bytes, 1);
        Call call;
        call.arena = &arena;
        call.queries = call.keys = n;
        call.q_pos = call.k_pos = {0};
        return plan.run(in, call);
      };
      for (const int64_t from : {5, 40, 64}) {
        SCOPED_TRACE(testing::Message() << name << " in " << type.name << " from " << from);
        Inputs in(mech, 1, n, n, 1);
        const Array want = run(in);
        in["v"].set([&, before = in["v"]](int64_t b, int64_t h, int64_t i, int64_t c) {
          return i < from ? before.at(b, h, i, c) : i == from ? INFINITY : NAN;
        });
        const Array got = run(in);
        for (int64_t h = 0; h < 2; ++h) EXPECT_TRUE(same_bits(want, 0, h, got, 0, h, from));
        EXPECT_TRUE(std::isinf(got.at(0, 1, from, 35)));
        EXPECT_TRUE(std::isnan(got.at(0, 0, n - 1, 0)));
      }
    }
}

TEST_P(LinearHalves, WeightsMayBeBeyondF16) {
  for (const auto& [d, e] : kWidths)
    for (const float by : {200.0f, 1e-3f}) {
      SCOPED_TRACE(testing::Message() << d << ", times " << by);
      const int64_t n = 150;
      const Mechanism here(cpu, make_block(ATTN_DECODER_SELF, true, 2, d, e)), there(cuda, here.block());
      expect_equal_rows(type, here, there, 1, n, causal_call(n), [by = by](Inputs& in) {
        for (size_t port = 0; port < 2; ++port)  // queries and keys
          for (float& x : in.arrays[port].data()) x = by * std::abs(x);
      });
    }
}

// Mechanisms and widths that have kernels of their own in 16 bits.
class RegisterHalves : public Halves {};
INSTANTIATE_TEST_SUITE_P(Cuda, RegisterHalves, testing::ValuesIn(in_turns("relu linear cosformer leap rope_linear")),
                         [](const auto& info) { return info.param.mechanism + "_" + info.param.type.name; });

TEST_P(RegisterHalves, HeadsOf64And128EqualTheCpu) {
  for (const int32_t width : {64, 128}) {
    const double worst = expect_whole_sequences_of_the_cpu(cpu, cuda, type, width);
    RecordProperty("error of " + std::to_string(width), std::to_string(1e6 * worst) + "e-6");
  }
}

// No bit of an output comes from rows that it does not see, whatever these are.
TEST_P(RegisterHalves, HiddenRowsMayBeAnything) {
  const InType chosen(type);
  const int64_t n = 140;
  for (const int32_t width : {32, 64}) {
    const Mechanism mech(cuda, make_block(ATTN_DECODER_SELF, true, 2, width, width));
    for (const int64_t from : {5, 64, 90}) {
      Inputs in(mech, 1, n, n, 1);
      const Array want = run_whole(in, 0, causal_call(n));
      for (const char* name : {"q", "k", "v"})
        in[name].set([from, before = in[name]](int64_t b, int64_t h, int64_t i, int64_t c) {
          return i < from ? before.at(b, h, i, c) : i % 2 ? NAN : INFINITY;
        });
      const Array got = run_whole(in, 0, causal_call(n));
      for (int64_t h = 0; h < 2; ++h) EXPECT_TRUE(same_bits(want, 0, h, got, 0, h, from)) << "from " << from;
      EXPECT_TRUE(std::isnan(got.at(0, 1, n - 1, 0)));
    }
  }
}

// Positions far from the first, and rows that are not aligned.
TEST_P(RegisterHalves, StreamsFarFromTheirBeginningEqualTheCpu) {
  const Mechanism here(cpu, make_block(ATTN_DECODER_SELF, true, 2, 64, 64)), there(cuda, here.block());
  const attn_request request = make_request(2, 150, 150, ATTN_STREAM | ATTN_KNOWS_Q_TOTAL);
  const auto run = [](const Mechanism& mech, Inputs& in, const attn_request& request) {
    const Planned plan(mech, request);
    const Arena arena(plan.info().state_bytes, 2);
    Call call;
    call.arena = &arena;
    call.queries = call.keys = 150;
    call.q_pos = call.k_pos = {1000003, 70};
    call.q_total = {2000000, 300};
    return plan.run(in, call);
  };
  Inputs in(here, 2, 150, 150, 1), same(there, 2, 150, 150, 1), odd(there, 2, 150, 150, 1, Layout::kOdd);
  for (Inputs* inputs : {&in, &same, &odd}) round_inputs(*inputs, type);
  const Array want = run(here, in, request);
  const InType chosen(type);
  const Array got = run(there, same, request);
  EXPECT_LE(rms_ratio(got, want), type.gate);
  EXPECT_TRUE(same_bits(got, run(there, odd, request)));
}

// Factors that inner units make: one, a few, and as many as the head has numbers; small ones and such as decide.
TEST(RegisterHalvesOfLeap, ModulesOfAnyWidthEqualTheCpu) {
  const attn_plugin &cpu = load(ATTNKIT_PLUGIN_DIR "/leap.so"), &cuda = load(ATTNKIT_EMULATED_DIR "/leap.so");
  const int64_t n = 90;
  for (const Type& type : all_halves())
    for (const int32_t width : {32, 64})
      for (const int64_t factor : {int64_t{1}, int64_t{2}, int64_t{width}})
        for (const bool shared : {true, false})
          for (const float by : {1.0f, 20.0f}) {
            SCOPED_TRACE(testing::Message() << type.name << ", width " << width << ", factor " << factor << ", shared "
                                            << shared << ", times " << by);
            const Settings settings{{"factor", factor}, {"shared", shared}};
            const Mechanism here(cpu, make_block(ATTN_DECODER_SELF, true, 2, width, width), settings),
                there(cuda, here.block(), settings);
            expect_equal_rows(type, here, there, 1, n, causal_call(n), [by](Inputs& in) {
              for (const char* name : {"q_w1", "k_w1"})
                for (float& x : in[name].data()) x *= by;
            });
          }
}

// W1 whose large numbers cancel, so that its units depend on what 16 bits would drop of them.
TEST(RegisterHalvesOfLeap, WeightsThatCancelEqualTheCpu) {
  const attn_plugin &cpu = load(ATTNKIT_PLUGIN_DIR "/leap.so"), &cuda = load(ATTNKIT_EMULATED_DIR "/leap.so");
  const int64_t n = 90;
  for (const Type& type : all_halves()) {
    const Mechanism here(cpu, make_block(ATTN_DECODER_SELF, true, 2, 64, 64)), there(cuda, here.block());
    expect_equal_rows(type, here, there, 1, n, causal_call(n), [](Inputs& in) {
      for (const char* name : {"q", "k"})
        in[name].set(
            [before = in[name]](int64_t b, int64_t h, int64_t i, int64_t) { return std::abs(before.at(b, h, i, 0)); });
      for (const char* name : {"q_w1", "k_w1"}) {
        float common = 64;
        for (float& x : in[name].data()) {
          x += common;
          common = -common;
        }
      }
    });
  }
}

class RegisterGradients : public Halves {
 protected:
  // So that each takes cross attention.
  const Settings crosses = GetParam().mechanism == "rope_linear" ? Settings{{"cross", true}} : Settings{};
};
INSTANTIATE_TEST_SUITE_P(Cuda, RegisterGradients, testing::ValuesIn(in_turns("relu linear cosformer rope_linear")),
                         [](const auto& info) { return info.param.mechanism + "_" + info.param.type.name; });

TEST_P(RegisterGradients, EqualTheCpus) {
  for (const int32_t width : {32, 64, 128}) {
    const double worst = expect_gradients_of_the_cpu(cpu, cuda, type, width, 72);
    RecordProperty("error of " + std::to_string(width), std::to_string(1e6 * worst) + "e-6");
  }
}

// A row of three segments beside one of less than two tiles, which gets the bits of a call of its own.
TEST_P(RegisterGradients, OfLongRowsEqualTheCpus) {
  for (const bool causal : {true, false}) {
    const int32_t n = 2090, fewer = 70;
    const Mechanism here(cpu, make_block(ATTN_ENCODER_SELF, causal, 1, 32, 32)), there(cuda, here.block());
    Call call, alone;
    call.q_len = call.k_len = {n, fewer};
    call.q_total = {double(n), double(fewer)};
    alone.q_total = {double(fewer)};
    const Gradients<float> want = rounded_gradients(here, type, 2, n, 0, call);
    const InType chosen(type);
    const Gradients<float> got = rounded_gradients(there, type, 2, n, 0, call);
    const Gradients<float> own = rounded_gradients(there, type, 1, fewer, 0, alone, [&](Inputs& in, Array* given) {
      Inputs both(there, 2, n, n, 5);
      const Gradients<float> of_both = Training<float>(both, 0, call).gradients();
      const auto second = [](Array& to, const Array& from) {
        to.set([&](int64_t, int64_t h, int64_t i, int64_t c) { return from.at(1, h, i, c); });
      };
      for (size_t p = 0; p < 3 && !given; ++p) second(in.arrays[p], both.arrays[p]);
      if (given) second(*given, of_both[there.output()]);
    });
    for (size_t p = 0; p < 3; ++p) {
      EXPECT_LE(rms_ratio(got[p], want[p]), type.gate) << here.ports()[p]->name << " causal " << causal;
      EXPECT_TRUE(same_bits(got[p], 1, 0, own[p], 0, 0, fewer)) << here.ports()[p]->name << " causal " << causal;
    }
  }
}

// The same of prefixes, in which some queries see nothing and keys are seen by none.
TEST_P(RegisterGradients, OfLongPrefixesEqualTheCpus) {
  const int32_t n = 2090;
  const Mechanism here(cpu, make_block(ATTN_DECODER_CROSS, false, 1, 32, 32), crosses),
      there(cuda, here.block(), crosses);
  Call call;
  call.q_total = call.k_total = {double(n)};
  for (int32_t i = 0; i < n; ++i) call.visible.push_back(i < 10 ? 0 : i / 5 * 5 - i / 20);
  const Gradients<float> want = rounded_gradients(here, type, 1, n, ATTN_PREFIX, call);
  const InType chosen(type);
  const Gradients<float> got = rounded_gradients(there, type, 1, n, ATTN_PREFIX, call);
  for (size_t p = 0; p < 3; ++p) EXPECT_LE(rms_ratio(got[p], want[p]), type.gate) << here.ports()[p]->name;
}

// No bit of a gradient of queries comes from keys that they do not see, nor one of keys from queries that do not see
// them, whatever these are.
TEST_P(RegisterGradients, OfHiddenRowsMayBeAnything) {
  const InType chosen(type);
  const int64_t n = 140;
  for (const int32_t width : {32, 64, 128}) {
    const Mechanism mech(cuda, make_block(ATTN_DECODER_SELF, true, 2, width, width));
    const Call call = causal_call(n);
    const Gradients<float> want = rounded_gradients(mech, type, 1, n, 0, call);
    const auto odd = [](Array& rows, const auto& changes) {
      rows.set([&, before = rows](int64_t b, int64_t h, int64_t i, int64_t c) {
        return !changes(i) ? before.at(b, h, i, c) : i % 2 ? NAN : INFINITY;
      });
    };
    for (const int64_t from : {40, 64}) {
      SCOPED_TRACE(testing::Message() << "width " << width << " from " << from);
      const Gradients<float> later = rounded_gradients(mech, type, 1, n, 0, call, [&](Inputs& in, Array* given) {
        for (const char* name : {"q", "k", "v"})
          if (!given) odd(in[name], [&](int64_t i) { return i >= from; });
        if (given) odd(*given, [&](int64_t i) { return i >= from; });
      });
      const Gradients<float> sooner = rounded_gradients(mech, type, 1, n, 0, call, [&](Inputs& in, Array* given) {
        if (!given) odd(in["q"], [&](int64_t i) { return i < from; });
        if (given) odd(*given, [&](int64_t i) { return i < from; });
      });
      for (int64_t h = 0; h < 2; ++h) {
        EXPECT_TRUE(same_bits(want[0], 0, h, later[0], 0, h, from));
        for (const size_t p : {size_t{1}, size_t{2}})
          for (int64_t i = from; i < n; ++i)
            for (int64_t c = 0; c < width; ++c)
              ASSERT_EQ(want[p].at(0, h, i, c), sooner[p].at(0, h, i, c)) << "row " << i << " of port " << p;
      }
      EXPECT_TRUE(std::isnan(sooner[2].at(0, 0, 0, 0)));
      EXPECT_TRUE(std::isnan(later[2].at(0, 0, 0, 0)));
    }
  }
}

TEST_P(RegisterGradients, GoThroughGuards) {
  for (const Settings& guard : {Settings{{"guard", "clamp"}, {"eps", 1000.0}},
                                {{"guard", "add"}, {"eps", 100.0}},
                                {{"guard", "none"}, {"eps", 0.0}}}) {
    const Mechanism here(cpu, make_block(ATTN_DECODER_SELF, true, 2, 32, 32), guard), there(cuda, here.block(), guard);
    const Gradients<float> want = rounded_gradients(here, type, 1, 20, 0, causal_call(20));
    const InType chosen(type);
    const Gradients<float> got = rounded_gradients(there, type, 1, 20, 0, causal_call(20));
    for (size_t p = 0; p < 3; ++p) EXPECT_LE(rms_ratio(got[p], want[p]), type.gate) << here.ports()[p]->name;
  }
}

// What values have in common is no gradient of queries, however many keys there are, and may be much more than that.
TEST_P(RegisterGradients, ValuesMayHaveAMean) {
  const Mechanism here(cpu, make_block(ATTN_ENCODER_SELF, false, 2, 64, 64)), there(cuda, here.block());
  const Prepare prepare = [](Inputs& in, Array* given) {
    for (float& x : in["v"].data())
      if (!given) x += 1;
  };
  const int64_t n = 600;
  const Gradients<float> want = rounded_gradients(here, type, 1, n, 0, causal_call(n), prepare);
  const InType chosen(type);
  const Gradients<float> got = rounded_gradients(there, type, 1, n, 0, causal_call(n), prepare);
  for (size_t p = 0; p < 3; ++p) EXPECT_LE(rms_ratio(got[p], want[p]), type.gate) << here.ports()[p]->name;
}

// No row is aligned, and there are fewer keys than queries.
TEST_P(RegisterGradients, OfOddRowsAreThoseOfEven) {
  const InType chosen(type);
  const Mechanism mech(cuda, make_block(ATTN_DECODER_CROSS, false, 2, 64, 64), crosses);
  Call call;
  call.q_len = {100, 1};
  call.k_len = {70, 3};
  const auto gradients = [&](Layout layout) {
    Inputs in(mech, 2, 100, 70, 5, layout);
    round_inputs(in, type);
    return backward(in, 0, call);
  };
  const Gradients<float> even = gradients(Layout::kModel), odd = gradients(Layout::kOdd);
  for (size_t p = 0; p < 3; ++p) EXPECT_TRUE(same_bits(even[p], odd[p])) << mech.ports()[p]->name;
}

// Those that are asked for alone have the bits of all together, and a call the bits of its equal.
TEST_P(RegisterGradients, MayBeSkipped) {
  const InType chosen(type);
  const Mechanism mech(cuda, make_block(ATTN_DECODER_SELF, true, 2, 64, 64));
  Inputs in(mech, 1, 100, 100, 1);
  round_inputs(in, type);
  Training<float> training(in, 0, causal_call(100));
  EXPECT_LT(training.info().backward_scratch_bytes, uint64_t{2 * 100 * 64 * 4}) << "tensors are widened";
  const Gradients<float> given = training.gradients();
  Gradients<float> all = given;
  training.backward(all);
  for (size_t p = 0; p < 3; ++p) {
    Gradients<float> one = given;
    for (size_t other = 0; other < 3; ++other)
      if (other != p) one[other] = {};
    training.backward(one);
    EXPECT_TRUE(same_bits(all[p], one[p])) << mech.ports()[p]->name;
  }
}

// What comes back may be near either end of f16, as where a loss is scaled, and so may sums on the way.
TEST_P(RegisterGradients, MayBeLargeAndTiny) {
  struct Times {
    float given, rows, values;
    size_t ports;  // whose gradients f16 holds
  };
  const bool is_about_one = GetParam().mechanism.ends_with("linear");  // in 16 bits the features of small rows are 1
  const float values = crosses.empty() ? 0x1p10f : 0x1p13f;            // a scaled query's gradient is smaller
  const Times tiny = is_about_one ? Times{0x1p-16f, 1, values, 2} : Times{0x1p-16f, 0x1p-9f, 0x1p6f, 2};
  const int64_t n = 150;
  for (const int32_t width : {32, 64, 128})
    for (const Times& by : {tiny, Times{0x1p9f, 4, 1, 3}}) {
      SCOPED_TRACE(testing::Message() << width << ", times " << by.given);
      const Mechanism here(cpu, make_block(ATTN_DECODER_SELF, true, 2, width, width)), there(cuda, here.block());
      const Prepare prepare = [&](Inputs& in, Array* given) {
        if (given)
          for (float& x : given->data()) x *= by.given;
        for (size_t p = 0; p < 3 && !given; ++p)
          for (float& x : in.arrays[p].data()) x = p == 2 ? by.values * x : is_about_one ? x : by.rows * std::abs(x);
      };
      const Gradients<float> want = rounded_gradients(here, type, 1, n, 0, causal_call(n), prepare);
      const InType chosen(type);
      const Gradients<float> got = rounded_gradients(there, type, 1, n, 0, causal_call(n), prepare);
      for (size_t p = 0; p < by.ports; ++p) EXPECT_LE(rms_ratio(got[p], want[p]), type.gate) << here.ports()[p]->name;
    }
}

class LongHalves : public Halves {};
INSTANTIATE_TEST_SUITE_P(Cuda, LongHalves, testing::ValuesIn(in_turns(ATTNKIT_CUDA_LINEAR " luna")),
                         [](const auto& info) { return info.param.mechanism + "_" + info.param.type.name; });

TEST_P(LongHalves, EqualTheCpu) {
  const int64_t n = 2090;
  for (const int32_t width : {8, 64}) {
    SCOPED_TRACE(width);
    const Mechanism here(cpu, make_block(ATTN_DECODER_SELF, true, 1, width, width)), there(cuda, here.block());
    expect_equal_rows(type, here, there, 1, n, causal_call(n));
  }
}

// The state is f32 and the CPU's: a stream begins there and ends in 16 bits.
TEST_P(CausalHalves, StreamsGoOnWhereTheCpuStopped) {
  for (const auto& [d, e] : {std::pair{24, 40}, std::pair{64, 64}}) {
    const Mechanism here(cpu, make_block(ATTN_DECODER_SELF, true, 3, d, e)), there(cuda, here.block());
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
    std::memcpy(other.row(0), one.row(0), one.row_bytes);
    int32_t done = 20;
    for (const int64_t count : {1, 3, 9, 40, 17}) {
      const Array want = run(f32, in, one, done, count);
      EXPECT_LE(rms_ratio(run(halves, same, other, done, count), want), type.gate) << "after " << done;
      done += static_cast<int32_t>(count);
    }
  }
}

// Whole sequences are cuDNN's where it is installed; every other run of the bridge is packed as cuDNN's alone are.
TEST(SoftmaxHalves, EqualCallsAndRowsAloneHaveEqualBits) {
  const int64_t n = 70;
  for (const Type& type : all_halves())
    for (const bool causal : {false, true})
      for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{}, {70, 41, 1}}) {
        SCOPED_TRACE(testing::Message() << type.name << ", causal " << causal << ", padded " << !lengths.empty());
        const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/softmax.so"),
                             make_block(ATTN_ENCODER_SELF, causal, 2, 64, 64));
        const InType chosen(type);
        Inputs in(mech, 3, n, n, 1);
        round_inputs(in, type);
        Call call;
        call.q_len = call.k_len = lengths;
        const Array first = run_whole(in, 0, call);
        for (int repeat = 0; repeat < 3; ++repeat) EXPECT_TRUE(same_bits(first, run_whole(in, 0, call))) << repeat;
        const int64_t rows = lengths.empty() ? n : lengths[1];
        Inputs one = alone(in, 1, rows, rows);
        const Array own = run_whole(one, 0, {});
        for (int64_t h = 0; h < 2; ++h) EXPECT_TRUE(same_bits(own, 0, h, first, 1, h, rows)) << "head " << h;
      }
}

// A head whose sums no block can hold: they lie in scratch, in f32.
TEST_P(CausalHalves, TakesWideHeads) {
  const attn_block wide = make_block(ATTN_DECODER_SELF, true, 1, 320, 250);
  expect_equal_rows(type, Mechanism(cpu, wide), Mechanism(cuda, wide), 1, 19, causal_call(19));
}

// Tiles of narrow heads are smaller than what a few tokens take of a block's shared memory.
TEST_P(CausalHalves, NarrowHeadsStreamInAnyLength) {
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 2, 8, 8);
  const Mechanism here(cpu, block), there(cuda, block);
  Inputs in(here, 2, 40, 40, 1), same(there, 2, 40, 40, 1);
  round_inputs(in, type);
  round_inputs(same, type);
  const attn_request request = make_request(2, 40, 40, ATTN_STREAM | ATTN_KNOWS_Q_TOTAL);
  const auto run = [](const Planned& plan, Inputs& inputs) {
    const Arena arena(plan.info().state_bytes, 2);
    Call call;
    call.arena = &arena;
    call.queries = call.keys = 40;
    call.q_pos = call.k_pos = {0, 0};
    call.q_len = call.k_len = {4, 40};
    call.q_total = {40, 40};
    return plan.run(inputs, call);
  };
  const Array want = run(Planned(here, request), in);
  const InType chosen(type);
  EXPECT_LE(rms_ratio(run(Planned(there, request), same), want), type.gate);
}

// The sum of a latent's exponentials is beyond f16 long before a logit asks for another scale.
TEST(LatteHalves, SumsMayBeBeyondF16) {
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 2, 24, 40);
  const int64_t n = 200;
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/latte.so"), block),
      there(load(ATTNKIT_EMULATED_DIR "/latte.so"), block);
  for (const Type& type : all_halves())
    expect_equal_rows(type, here, there, 1, n, causal_call(n), [](Inputs& in) {
      Array& k = in["latent_k"];
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t j = 1; j < n; ++j)
          for (int64_t l = 0; l < k.width; l += 2) k.at(0, h, j, l) = k.at(0, h, 0, l) + 9;
    });
}

// Rows that are split among blocks, beside one that is not.
TEST(S4dHalves, LongRowsEqualTheCpu) {
  Call call;
  call.q_len = call.k_len = {5000, 4500, 70};
  for (const bool causal : {false, true}) {
    SCOPED_TRACE(causal);
    const Settings settings{{"order", int64_t{4}}};
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/s4d.so"), make_block(ATTN_ENCODER_SELF, causal, 1, 3, 3), settings),
        there(load(ATTNKIT_EMULATED_DIR "/s4d.so"), here.block(), settings);
    for (const Type& type : all_halves()) expect_equal_rows(type, here, there, 3, 5000, call);
  }
}

// Situations have no more than two blocks of bigbird's default size, and no more tokens than nystromformer's landmarks.
TEST(EncoderHalves, ManyBlocksAndLandmarksEqualTheCpu) {
  const attn_block block = make_block(ATTN_ENCODER_SELF, false, 2, 24, 40);
  Call call;
  call.q_len = call.k_len = {230, 151};
  for (const auto& [name, settings] :
       {std::pair<std::string, Settings>{"bigbird", {{"block", 24}, {"random", 2}, {"length", 240}}},
        {"nystromformer", {{"landmarks", 24}, {"conv", true}, {"kernel", 9}}}}) {
    SCOPED_TRACE(name);
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/" + name + ".so"), block, settings),
        there(load(ATTNKIT_EMULATED_DIR "/" + name + ".so"), block, settings);
    for (const Type& type : all_halves()) expect_equal_rows(type, here, there, 2, 230, call);
  }
}

}  // namespace
}  // namespace attnkit::test
