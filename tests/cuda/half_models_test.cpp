// Models on a device with weights of bf16 or f16, whose attention is in that type, beside the same models on the CPU:
// with bf16 weights there too, and with f32 weights in place of f16, which the CPU has not.  Their results are off by
// an RMS ratio of at most what a type says.
#include <cmath>

#include "core/model/device_compute.hpp"
#ifndef ATTNKIT_ON_A_GPU
#include "cuda/emulator/cudnn.hpp"
#endif
#include "cuda/models.hpp"

namespace attnkit::core {
namespace {

struct Type {
  const char* name;
  uint8_t code;
  double gate;
};
constexpr Type types[] = {{"bf16", 4, 8e-3}, {"f16", 2, 1.5e-3}};

void PrintTo(const Type& type, std::ostream* out) { *out << type.name; }

Both in_type(const Type& type, const std::string& toml) {
  return {type.code == 4 ? typed(toml, "bf16") : toml, typed(toml, type.name), numbers};
}

double rms_ratio(std::span<const float> got, std::span<const float> want) {
  EXPECT_EQ(got.size(), want.size());
  double squares = 0, off = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += double{want[i]} * want[i];
    off += (double{want[i]} - got[i]) * (double{want[i]} - got[i]);
  }
  return std::sqrt(off / squares);
}

void expect_off(std::span<const float> got, std::span<const float> want, double gate, const std::string& what) {
  const double off = rms_ratio(got, want);
  EXPECT_LE(off, gate) << what;
  EXPECT_GT(off, gate / 50) << what << ": nothing was rounded";
}

void expect_type(const Plan& plan, const Type& type, const std::string& what) {
  EXPECT_EQ(plan.request().dtype_bits, 16) << what;
  EXPECT_EQ(plan.request().dtype_code, type.code) << what;
}

// What walks plan: whole sequences, prompts, sources of sessions and steps.
void expect_plans(const Model& model, const Type& type) {
  for (const Block* block : model.blocks()) {
    const bool cross = block->choice().role == ATTN_DECODER_CROSS;
    expect_type(block->plan_whole(1, 2, 7, cross ? 9 : 7), type, block->path() + ", whole");
    if (!block->streams()) continue;
    const int64_t most = block->max_length();
    if (cross) expect_type(block->plan_stream(1, 2, 0, 9, most), type, block->path() + ", appended");
    for (const int64_t tokens : {1, 4})
      expect_type(block->plan_stream(1, 2, tokens, cross ? 0 : tokens, most), type, block->path() + ", written");
  }
}

// Long enough that what is written stays within the predicted length, beyond which cosformer's weights cancel.
Tokens some(int32_t n) {
  Tokens ids;
  for (int32_t i = 0; i < n; ++i) ids.push_back(7 * i % 40 + 3);
  return ids;
}

std::vector<float> logits(const Loaded& model, const Batch& source, const Batch& target) {
  std::vector<float> all(target.ids.size() * static_cast<size_t>(model->outputs()));
  model->forward(model->has_encoder() ? source.get() : Ids{}, target.get(), all.data());
  return all;
}

// The logits of a prompt and of five tokens after it, the first of which run as they are and the others as a graph; two
// sessions side by side.
std::vector<std::vector<float>> steps(const Loaded& model, const std::vector<Tokens>& of_source) {
  std::vector<std::unique_ptr<Session>> held;
  std::vector<Session*> sessions;
  for (const Tokens& source : of_source) {
    held.push_back(std::make_unique<Session>(model, 1));
    if (model->has_encoder()) held.back()->read(row(source));
    sessions.push_back(held.back().get());
  }
  const auto count = static_cast<int64_t>(sessions.size());
  const Tokens prompt(static_cast<size_t>(3 * count), 4);
  std::vector<int32_t> lengths(sessions.size(), 3);
  lengths.front() = 2;
  std::vector<std::vector<float>> all;
  Session::write(sessions, {prompt.data(), 3, count, 3, lengths.data()}, nullptr);
  for (int32_t step = 0; step < 6; ++step) {
    all.emplace_back();
    for (const Session* session : sessions) {
      const std::vector<float> scores = last(*session);
      all.back().insert(all.back().end(), scores.begin(), scores.end());
    }
    const Tokens next(sessions.size(), 7 + 5 * step);
    Session::write(sessions, {next.data(), 1, count, 1, nullptr}, nullptr);
  }
  return all;
}

void expect_near_in_all(const Both& both, const Type& type) {
  const std::vector<Tokens> all{some(21), some(13)};
  const Batch source(all), target({{3, 8, 13, 18, 23, 28}, {33, 38, 43}});
  expect_off(logits(both.device, source, target), logits(both.cpu, source, target), type.gate, "logits");
  if (both.cpu->has_encoder()) {
    const auto here = both.cpu->encode(source.get()), there = both.device->encode(source.get());
    const size_t n = source.ids.size() * static_cast<size_t>(both.cpu->manifest().d_model);
    expect_off({there->rows, n}, {here->rows, n}, type.gate, "rows of the encoder");
  }
  const auto here = steps(both.cpu, all), there = steps(both.device, all);
  for (size_t i = 0; i < here.size(); ++i) expect_off(there[i], here[i], type.gate, "step " + std::to_string(i));
}

class HalfModels : public testing::TestWithParam<std::tuple<std::string, Type>> {
 protected:
  const std::string mechanism = std::get<0>(GetParam());
  const Type type = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Of, HalfModels, testing::Combine(testing::ValuesIn(names()), testing::ValuesIn(types)),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

TEST_P(HalfModels, AttendIn16Bits) {
  const Both both = in_type(type, untrained_toml(mechanism));
  expect_plans(*both.device, type);
  expect_near_in_all(both, type);
}

class EachType : public testing::TestWithParam<Type> {
 protected:
  const Type type = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Of, EachType, testing::ValuesIn(types), [](const auto& info) { return info.param.name; });

// Steps behind a projection, the last of which rounds: norms, turns of a part of the channels, heads that are repeated
// for relu and shared by softmax.
std::string decoder_toml(const std::string& more) {
  return R"(schema = "attnkit.model/1"
[model]
name = "decoder"
kind = "decoder"
d_model = 64
heads = 4
kv_heads = 2
ffn = 96
max_length = 64
head_norm = true
decoder = { layers = 2, vocab = "vocab.txt" }
)" + more +
         R"(
[weights]
seed = 1
[attention]
default = "softmax"
override = [{ block = "decoder.self", layers = 2, use = "relu" }]
)";
}

TEST_P(EachType, RoundsBehindTheStepsOfAProjection) {
  for (const char* more : {"", "qk_norm = true", "positions = \"rotary\"\nrotary = { width = 10 }",
                           "positions = \"rotary\"\nrotary = { layout = \"interleaved\" }\nqk_norm = true"}) {
    SCOPED_TRACE(more);
    const Both both = in_type(type, decoder_toml(more));
    expect_plans(*both.device, type);
    expect_near_in_all(both, type);
  }
}

TEST_P(EachType, TranslatesAsOnTheCpu) {
  for (const char* placement : {"softmax/softmax/softmax", "cosformer/leap/softmax"}) {
    const Both both = in_type(type, numbers_toml(placement));
    const Batch source(sources(*both.cpu, 2, 300)), target({{1, 7, 9}, {2, 8, 5, 3}});
    expect_off(logits(both.device, source, target), logits(both.cpu, source, target), type.gate, "logits");
    for (const Tokens& source : sources(*both.cpu, 2, 700)) {
      EXPECT_EQ(translated(both.device, source, 1), translated(both.cpu, source, 1));
      EXPECT_EQ(translated(both.device, source, 4), translated(both.cpu, source, 4));
    }
  }
}

#ifndef ATTNKIT_ON_A_GPU  // the stand-in counts
TEST_P(EachType, HasCudnnAttend) {
  const Loaded model = open(typed(decoder_toml(""), type.name), numbers, 2);
  const uint64_t before = emulator::cudnn_executions();
  for (const int32_t n : {9, 12, 16, 17}) {
    const Batch text({some(n)});
    logits(model, text, text);
  }
  EXPECT_EQ(emulator::cudnn_executions(), before + 4);  // of one layer
}
#endif

TEST_P(EachType, AttendsInF32WhereTheMechanismRefuses16Bits) {
  const std::string toml = std::regex_replace(untrained_toml("performer"), std::regex("use = \"performer\""),
                                              "use = \"performer\", stabiliser = \"fixed\"");
  const Both both = in_type(type, toml);
  for (const Block* block : both.device->blocks()) EXPECT_EQ(block->plan_whole(1, 2, 7, 7).request().dtype_bits, 32);
  expect_near_in_all(both, type);
}

TEST_P(EachType, PaddingChangesNothing) {
  const std::vector<Tokens> of_source{some(21), some(5)}, of_target{some(9), some(4)};
  for (const char* mechanism : {"softmax", "relu", "luna"}) {
    SCOPED_TRACE(mechanism);
    const Loaded model = open(typed(untrained_toml(mechanism), type.name), numbers, 2);
    const auto outputs = static_cast<size_t>(model->outputs());
    const std::vector<float> both = logits(model, Batch(of_source), Batch(of_target));
    const std::vector<float> alone = logits(model, Batch({of_source[1]}), Batch({of_target[1]}));
    const auto* second = both.data() + 9 * outputs;
    EXPECT_EQ(alone, std::vector<float>(second, second + 4 * outputs));
    EXPECT_EQ(std::vector<float>(5 * outputs), std::vector<float>(second + 4 * outputs, second + 9 * outputs));
  }
}

// States are f32 with the CPU's meaning.
TEST_P(EachType, TakesSessionsOfTheOtherDevice) {
  const Both both = in_type(type, numbers_toml("relu/softmax/leap"));
  const Tokens source = sources(*both.cpu, 1, 5)[0], target = translated(both.cpu, source, 1);
  ASSERT_GT(target.size(), 5u);
  const auto write = [](Session& session, const Tokens& ids) {
    Session* self = &session;
    for (const int32_t id : ids) Session::write({&self, 1}, {&id, 1, 1, 1, nullptr}, nullptr);
    return last(session);
  };
  const Tokens begin(target.begin(), target.begin() + 3), rest(target.begin() + 3, target.end() - 1);
  std::vector<float> want;
  for (const auto& [from, to] :
       {std::pair(both.cpu, both.cpu), {both.cpu, both.device}, {both.device, both.cpu}, {both.device, both.device}}) {
    Session session(from, 1);
    session.read(row(source));
    write(session, begin);
    const auto blob = session.save();
    const auto moved = Session::load(to, blob);
    const std::vector<float> scores = write(*moved, rest);
    if (want.empty()) want = scores;
    EXPECT_LE(rms_ratio(scores, want), type.gate);
    EXPECT_EQ(Session::load(from, blob)->save(), blob);
    if (from == to) {
      EXPECT_EQ(write(session, rest), scores);
    }
  }
}

TEST(HalfModels, OfF16AreForADevice) {
  const std::string toml = typed(untrained_toml("relu"), "f16");
  EXPECT_EQ(refusal(toml, 2), "none");
  expect_contains(refusal(toml, 1), "type = \"f16\" is for models on a device, and this one is on the CPU");
}

TEST(HalfModels, RefuseWeightsBeyondF16) {
  const auto refused = [](const Dense& layer) {
    try {
      DeviceTensors(runtime(2)->device()).add(layer, false);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  const std::vector<float> most{65504}, beyond{-70000};
  EXPECT_EQ(refused(Dense(1, 1, most, most, WeightType::f16)), "none");
  EXPECT_EQ(refused(Dense(1, 1, beyond, most, WeightType::bf16)), "none");
  for (const bool of_bias : {false, true})
    EXPECT_EQ(refused(Dense(1, 1, of_bias ? most : beyond, of_bias ? beyond : most, WeightType::f16)),
              "[weights] type = \"f16\": there is a weight -70000, and f16 ends at 65504: set \"bf16\"");
}

}  // namespace
}  // namespace attnkit::core
