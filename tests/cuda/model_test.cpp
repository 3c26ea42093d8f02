// Models on a device: variants and libattnkit_cuda.so, or the library of ATTNKIT_DEVICE_LIBRARY, on the emulator,
// against the same models on the CPU.  ATTNKIT_DEVICE_LISTS says how many lists each of
// four placements translates, 5 if not set.
#include "core/model/model.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <utility>
#ifndef ATTNKIT_ON_A_GPU
#include "cuda/emulator/emulator.hpp"
#endif
#include "cuda/models.hpp"

namespace attnkit::core {
namespace {

size_t lists() {
  const char* const set = std::getenv("ATTNKIT_DEVICE_LISTS");
  return set ? std::strtoul(set, nullptr, 10) : 5;
}

void expect_near(std::span<const float> a, std::span<const float> b, float off) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], off * std::max(1.0f, std::abs(a[i]))) << i;
}

// Logits of the targets' rows, and rows of the encoder, of these sources at once.
void expect_equal_logits(const Both& both, const std::vector<Tokens>& of_source, const std::vector<Tokens>& of_target) {
  const Batch source(of_source), target(of_target);
  const auto n = target.ids.size() * static_cast<size_t>(both.cpu->outputs());
  std::vector<float> on_cpu(n), on_device(n), decoded(n);
  both.cpu->forward(source.get(), target.get(), on_cpu.data());
  both.device->forward(source.get(), target.get(), on_device.data());
  expect_near(on_cpu, on_device, 2e-4f);
  const auto here = both.cpu->encode(source.get()), there = both.device->encode(source.get());
  both.device->decode(*there, target.get(), decoded.data());
  EXPECT_EQ(decoded, on_device);
  const size_t numbers_of_rows = source.ids.size() * static_cast<size_t>(both.cpu->manifest().d_model);
  expect_near({here->rows, numbers_of_rows}, {there->rows, numbers_of_rows}, 2e-4f);
}

// Sessions of five sources, written together: prompts of several lengths, then tokens one by one, as they are and then
// as a graph.
void expect_equal_steps(const Both& both, const std::vector<Tokens>& all) {
  std::vector<std::unique_ptr<Session>> held;
  std::vector<Session*> of[2];
  for (const Loaded& model : {both.cpu, both.device})
    for (const Tokens& source : all) {
      held.push_back(std::make_unique<Session>(model, 1));
      held.back()->read(row(source));
      of[model == both.device].push_back(held.back().get());
    }
  Tokens prompts(15, 4);
  const std::vector<int32_t> lengths{3, 1, 2, 3, 1};
  const auto outputs = static_cast<size_t>(both.cpu->outputs());
  std::vector<float> logits[2];
  for (const int device : {0, 1}) {
    logits[device].resize(15 * outputs);
    Session::write(of[device], {prompts.data(), 3, 5, 3, lengths.data()}, logits[device].data());
  }
  expect_near(logits[0], logits[1], 2e-4f);
  for (int32_t step = 0; step < 5; ++step) {
    const Tokens next{step, 9, 3 * step, 12, 7};
    std::vector<float> scores[2];
    for (const int device : {0, 1}) {
      scores[device].resize(5 * outputs);
      Session::write(of[device], {next.data(), 1, 5, 1, nullptr}, step % 2 ? scores[device].data() : nullptr);
    }
    if (step % 2) expect_near(scores[0], scores[1], 2e-4f);
    for (size_t i = 0; i < 5; ++i) expect_near(last(*of[0][i]), last(*of[1][i]), 2e-4f);
  }
}

class Placements : public testing::TestWithParam<const char*> {};

TEST_P(Placements, TranslateAsOnTheCpu) {
  const Both both = translators(GetParam());
  for (const Tokens& source : sources(*both.cpu, lists(), 1500 / lists())) {
    EXPECT_EQ(translated(both.device, source, 1), translated(both.cpu, source, 1));
    EXPECT_EQ(translated(both.device, source, 4), translated(both.cpu, source, 4));
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Placements,
                         testing::Values("softmax/softmax/softmax", "relu/relu/relu", "cosformer/leap/softmax",
                                         "leap/cosformer/relu"));

TEST(DeviceModel, HasTheLogitsOfTheCpu) {
  const Both both = translators("cosformer/leap/softmax");
  expect_equal_logits(both, sources(*both.cpu, 2, 3), {{3, 8, 13, 18, 23, 28}, {33, 38, 43}});
}

TEST(DeviceModel, WritesForManySessionsAtOnce) {
  const Both both = translators("relu/leap/softmax");
  expect_equal_steps(both, sources(*both.cpu, 5, 11));
}

class Mechanisms : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Of, Mechanisms, testing::ValuesIn(names()), [](const auto& info) { return info.param; });

TEST_P(Mechanisms, ComputeAsOnTheCpu) {
  const Both both(untrained_toml(GetParam()), numbers);
  const std::vector<Tokens> all = sources(*both.cpu, 5, 11);
  expect_equal_logits(both, {all[0], all[1]}, {{3, 8, 13, 18, 23, 28}, {33, 38, 43}});
  expect_equal_steps(both, all);
  for (const int beams : {1, 3})
    EXPECT_EQ(translated(both.device, all[2], beams, 8), translated(both.cpu, all[2], beams, 8));
}

TEST(DeviceModel, ReadsManySourcesAtOnce) {
  const Both both = translators("softmax/softmax/cosformer");
  const std::vector<Tokens> two = sources(*both.cpu, 2, 23);
  const Batch padded(two);
  Session a(both.device, 1), b(both.device, 1);
  Session* const sessions[] = {&a, &b};
  const uint32_t ends[] = {1, 1};
  Session::read(sessions, padded.get(), ends);
  EXPECT_EQ(a.generate(0), translated(both.cpu, two[0], 1));
  EXPECT_EQ(b.generate(0), translated(both.cpu, two[1], 1));
}

// By what the device found of their scores, which a session of other rules beside them may change.
TEST(DeviceModel, ContinuesManySessionsTogether) {
  const Both both = translators("softmax/leap/softmax");
  const std::vector<Tokens> texts = sources(*both.cpu, 5, 31);
  std::vector<std::unique_ptr<Session>> all;
  std::vector<Session*> going;
  std::vector<Tokens> expected, made(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const int beams = 1 + static_cast<int>(i) % 3;
    expected.push_back(translated(both.cpu, texts[i], beams));
    all.push_back(std::make_unique<Session>(both.device, beams));
    all.back()->read(row(texts[i]));
  }
  for (const int64_t steps : {3, 0})
    for (bool goes_on = true; goes_on; goes_on = steps == 0) {
      going.clear();
      std::vector<size_t> which;
      for (size_t i = 0; i < all.size(); ++i)
        if (made[i].empty()) going.push_back(all[i].get()), which.push_back(i);
      if (going.empty()) break;
      const auto ended = Session::generate(going, 0, steps);
      for (size_t i = 0; i < which.size(); ++i)
        if (ended[i]) made[which[i]] = *ended[i];
    }
  EXPECT_EQ(made, expected);
}

TEST(DeviceModel, ClonesReordersAndMovesSessions) {
  const Both both = translators("softmax/leap/softmax");
  const Tokens source = sources(*both.cpu, 1)[0], begin(3, both.cpu->vocabulary(true)->begin_id()), next{5, 6, 7};
  std::vector<float> found[2];
  for (const Loaded& model : {both.cpu, both.device}) {
    Session session(model, 3);
    session.read(row(source));
    Session* self = &session;
    Session::write({&self, 1}, {begin.data(), 1, 3, 1, nullptr}, nullptr);
    Session::write({&self, 1}, {next.data(), 1, 3, 1, nullptr}, nullptr);
    const auto copy = session.clone();
    session.reorder({2, 2, 0});
    for (Session* s : {self, copy.get()}) {
      Session::write({&s, 1}, {next.data(), 1, 3, 1, nullptr}, nullptr);
      const std::vector<float> scores = last(*s);
      found[model == both.device].insert(found[model == both.device].end(), scores.begin(), scores.end());
    }
  }
  expect_near(found[0], found[1], 2e-4f);
}

TEST(DeviceModel, TakesSessionsOfTheOtherDevice) {
  const Both both = translators("relu/softmax/leap");
  const Tokens source = sources(*both.cpu, 1, 5)[0], whole = translated(both.cpu, source, 1);
  ASSERT_GT(whole.size(), 4u);
  for (const bool to_device : {true, false}) {
    const Loaded &from = to_device ? both.cpu : both.device, &to = to_device ? both.device : both.cpu;
    Session session(from, 1);
    session.read(row(source));
    Tokens made = session.generate(3);
    const auto blob = session.save();
    const auto moved = Session::load(to, blob);
    const Tokens rest = moved->generate(0);
    made.insert(made.end(), rest.begin(), rest.end());
    EXPECT_EQ(made, whole);
    EXPECT_EQ(Session::load(from, session.save())->save(), blob);
  }
}

TEST(DeviceModel, HasMoreRowsThanTheStatesBeganWith) {
  const Both both = translators("relu/softmax/softmax");
  const std::vector<Tokens> all = sources(*both.cpu, 3, 13);
  Session first(both.device, 1);
  first.read(row(all[0]));
  Tokens made = first.generate(4);  // its graph is of memory that moves
  std::vector<std::unique_ptr<Session>> many;
  for (int i = 0; i < 20; ++i) many.push_back(std::make_unique<Session>(both.device, 2));
  for (const size_t i : {size_t{0}, size_t{19}}) {
    Session there(both.cpu, 2);
    for (Session* session : {&there, many[i].get()}) session->read(row(all[1 + i / 19]));
    EXPECT_EQ(many[i]->generate(6), there.generate(6));
  }
  const Tokens rest = first.generate(0);
  made.insert(made.end(), rest.begin(), rest.end());
  EXPECT_EQ(made, translated(both.cpu, all[0], 1));
}

TEST(DeviceModel, RunsFromManyThreads) {
  const Both both = translators("softmax/relu/softmax");
  const std::vector<Tokens> all = sources(*both.cpu, 3, 17);
  std::vector<Tokens> made(3);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 3; ++i) threads.emplace_back([&, i] { made[i] = translated(both.device, all[i], 1); });
  for (std::thread& t : threads) t.join();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(made[i], translated(both.cpu, all[i], 1));
}

// Each alone and all together.
TEST(DeviceModel, ObeysTheRulesOfDecoding) {
  const auto rules = [](const std::string& decode) { return "\n[decode]\nbeams = 2\n" + decode; };
  std::vector<std::string> tomls;
  for (const char* decode :
       {"suppress = [5]\n", "suppress_first = [20, 21, 22, 23]\n", "forced = [9, 7]\n", "min_length = 9\n",
        "max_length = 8\nforce_end = true\n", "no_repeat = 2\n", "repetition_penalty = 1.2\n",
        "repetition_penalty = 0.8\n",
        "suppress = [5]\nrepetition_penalty = 1.2\nno_repeat = 1\nmin_length = 4\nmax_length = 60\nforce_end = true\n"})
    tomls.push_back(numbers_toml("softmax/softmax/softmax", rules(decode)));
  for (const char* decode : {"", "min_length = 9\nsuppress = [5]\n"})
    tomls.push_back(std::regex_replace(numbers_toml("softmax/softmax/softmax", rules(decode)),
                                       std::regex("(decoder = \\{[^}]*) \\}"), "$1, more_ends = [9, 10, 11] }"));
  for (const std::string& toml : tomls) {
    SCOPED_TRACE(toml.substr(toml.find("[decode]")));
    const Both both{toml, numbers};
    const Tokens source = sources(*both.cpu, 1, 3)[0];
    for (const int beams : {1, 3})
      EXPECT_EQ(translated(both.device, source, beams), translated(both.cpu, source, beams)) << beams;
    Tokens drawn[2];
    for (const Loaded& model : {both.cpu, both.device}) {
      Session session(model, 1);
      session.read(row(source));
      Sampling warm = model->manifest().sampling;
      warm.temperature = 1.5;
      warm.top_k = 10;
      Sampler sampler(warm);
      drawn[model == both.device] = session.sample({}, sampler, 20, nullptr);
    }
    EXPECT_EQ(drawn[0], drawn[1]);
  }
}

TEST(DeviceModel, NeedsMoreScoresThanTheDeviceNames) {
  const std::string folder = testing::TempDir();
  std::ofstream vocabulary(folder + "/vocab.txt");
  vocabulary << "<pad>\n<s>\n</s>\n";
  for (int i = 3; i < 600; ++i) vocabulary << "▁" << i << "\n";
  vocabulary.close();
  const Both both(untrained_toml("relu") + "[decode]\nno_repeat = 1\nrepetition_penalty = 1.5\nmin_length = 300\n",
                  folder);
  const Tokens source{4, 5, 6, 7};
  for (const int beams : {1, 2}) {
    const Tokens made = translated(both.device, source, beams, 270);
    EXPECT_EQ(made.size(), 270u);
    EXPECT_EQ(made, translated(both.cpu, source, beams, 270)) << beams;
  }
}

// From all tokens, from the best that the device names, and the best.
TEST(DeviceModel, DrawsAsOnTheCpu) {
  const Both both = translators("softmax/softmax/softmax");
  const Tokens source = sources(*both.cpu, 1, 3)[0];
  for (const int64_t top_k : {0, 1, 5, 40}) {
    Tokens drawn[2];
    for (const Loaded& model : {both.cpu, both.device}) {
      Session session(model, 1);
      session.read(row(source));
      Sampling warm;
      warm.temperature = 2;
      warm.top_k = top_k;
      warm.top_p = top_k == 40 ? 0.9 : 1;
      warm.seed = 3;
      Sampler sampler(warm);
      drawn[model == both.device] = session.sample({}, sampler, 12, nullptr);
    }
    EXPECT_EQ(drawn[0], drawn[1]) << top_k;
  }
}

TEST(DeviceModel, IsADecoderAlone) {
  const Both both(sample("language-model.toml"), numbers);  // rotary positions, shared heads of keys, gates
  const Tokens prompt{3, 14, 15, 9, 2, 6};
  Tokens made[2];
  for (const Loaded& model : {both.cpu, both.device}) {
    Session session(model, 1);
    Sampling best;
    Sampler greedy(best);
    made[model == both.device] = session.sample(prompt, greedy, 6, nullptr);
  }
  EXPECT_EQ(made[0], made[1]);
  std::vector<float> logits[2];
  for (const Loaded& model : {both.cpu, both.device}) {
    std::vector<float>& to = logits[model == both.device];
    to.resize(prompt.size() * static_cast<size_t>(model->outputs()));
    model->forward({}, row(prompt), to.data());
  }
  expect_near(logits[0], logits[1], 2e-4f);
}

#ifndef ATTNKIT_ON_A_GPU
// Beside the products: what a step costs at batch 1 is launches.
TEST(DeviceModel, HasFewKernelsInAStep) {
  const int layers = 2;
  for (const auto& [type, more] : {std::pair("f32", 0), {"bf16", 1}}) {  // before the scores their inputs are rounded
    const Loaded model = open(typed(sample("language-model.toml"), type), numbers, 2);
    Session session(model, 1);
    const Tokens prompt{3, 14, 15};
    Session* self = &session;
    Session::write({&self, 1}, row(prompt), nullptr);
    session.generate(3);
    const uint64_t before = emulator::kernels_run();
    session.generate(1);
    // Norm, heads, attention; norm, gate.  Embedding, last norm, the best score.
    EXPECT_EQ(static_cast<uint64_t>(5 * layers + 3 + more), emulator::kernels_run() - before) << type;
  }
}

// Reads and steps of many sessions are the launches of one.
TEST(DeviceModel, HasAsManyKernelsForManySessionsAsForOne) {
  const Both both = translators("relu/leap/softmax");
  // Of one length: reads take turns by lengths, whose padding costs more than a launch.
  const std::vector<Tokens> texts(5, sources(*both.cpu, 1, 23)[0]);
  std::vector<std::vector<uint64_t>> kernels;
  for (const size_t count : {1, 5}) {
    std::vector<std::unique_ptr<Session>> held;
    std::vector<Session*> all;
    for (size_t i = 0; i < count; ++i)
      all.push_back(held.emplace_back(std::make_unique<Session>(both.device, 1)).get());
    const Batch padded({texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(count)});
    const std::vector<uint32_t> ends(count, 1);
    const Tokens next(count, 3);
    uint64_t before = emulator::kernels_run();
    const auto since = [&] { return emulator::kernels_run() - std::exchange(before, emulator::kernels_run()); };
    std::vector<uint64_t>& taken = kernels.emplace_back();
    Session::read(all, padded.get(), ends);
    taken.push_back(since());
    for (int step = 0; step < 3; ++step) {  // as it is, captured, and replayed
      Session::write(all, {next.data(), 1, static_cast<int64_t>(count), 1, nullptr}, nullptr);
      taken.push_back(since());
    }
  }
  EXPECT_GT(kernels[0][0], 0U);
  EXPECT_GT(kernels[0][3], 0U);
  EXPECT_EQ(kernels[0], kernels[1]);
}
#endif

TEST(DeviceModel, IsAnEncoderAlone) {
  const Both both(sample("sentence-encoder.toml"), numbers);  // norms behind, learned positions, a pool
  const Tokens text{3, 14, 15, 9, 2, 6, -1, -1};
  const int32_t lengths[] = {5, 3};
  std::vector<float> vectors[2];
  for (const Loaded& model : {both.cpu, both.device}) {
    std::vector<float>& to = vectors[model == both.device];
    to.resize(2 * 64);
    const Tokens two{3, 14, 15, 9, 2, 6, 7, 8, -1, -1};
    model->forward(Ids{two.data(), 5, 2, 5, lengths}, {}, to.data());
  }
  expect_near(vectors[0], vectors[1], 1e-4f);
}

TEST(DeviceModel, HasTablesOfBlocksAndLandmarks) {
  Tokens text;
  for (int32_t i = 0; i < 500; ++i) text.push_back(i % 47 + 3);
  for (const char* name : {"bigbird.toml", "nystromformer.toml"}) {
    SCOPED_TRACE(name);
    const Both both(sample(name), numbers);
    std::vector<float> scores[2];
    for (const Loaded& model : {both.cpu, both.device}) {
      std::vector<float>& to = scores[model == both.device];
      to.resize(10);
      model->forward(row(text), {}, to.data());
    }
    expect_near(scores[0], scores[1], 1e-4f);
  }
}

TEST(DeviceModel, CarriesSequencesFromBlockToBlock) {
  const Both both(sample("luna-pair.toml"), numbers);
  const Tokens source{3, 14, 15, 9, 2};
  EXPECT_EQ(translated(both.device, source, 1), translated(both.cpu, source, 1));
}

TEST(DeviceModel, RefusesInWords) {
  const std::string toml = numbers_toml("softmax/softmax/softmax");
  expect_contains(refusal(typed(toml, "int8")), "type = \"int8\": weights on a device are f32, bf16 or f16");
  expect_contains(refusal(typed(toml, "int4")), "type = \"int4\"");
  expect_contains(refusal(numbers_toml("reformer/softmax/softmax")),
                  "mechanism \"reformer\" has no variant for this device");
  expect_contains(refusal(numbers_toml("reformer/softmax/softmax")), "softmax");
  expect_contains(refusal(std::regex_replace(toml, std::regex("\\[length\\][^\\[]*"), "[stream]\n")), "[stream]");
  const Both both = translators("softmax/softmax/softmax");
  const Tokens source = sources(*both.cpu, 1)[0], target{1, 2};
  Probe probe;
  EXPECT_THROW(both.device->forward(row(source), row(target), nullptr, &probe), Error);
}

// While it lives, the device gives no more memory.
#ifdef ATTNKIT_ON_A_GPU
struct NoMemory {
  NoMemory() {
    for (size_t bytes = size_t{1} << 38; bytes >= size_t{1} << 16; bytes /= 2)
      for (void* p = nullptr; cudaMalloc(&p, bytes) == cudaSuccess;) taken.push_back(p);
    cudaGetLastError();
  }
  ~NoMemory() {
    for (void* const p : taken) cudaFree(p);
  }
  std::vector<void*> taken;
};
#else
struct NoMemory {
  NoMemory() { std::swap(emulator::machine().memory, memory); }
  ~NoMemory() { std::swap(emulator::machine().memory, memory); }
  size_t memory = 0;
};
#endif

TEST(DeviceModel, IsUnharmedWhenMemoryIsOut) {
  const Both both = translators("softmax/softmax/softmax");
  const Tokens source = sources(*both.cpu, 1, 9)[0];
  Session session(both.device, 1);
  session.read(row(source));
  Tokens made = session.generate(3);
  Session late(both.device, 1);
  std::vector<std::unique_ptr<Session>> more;
  {
    const NoMemory until_here;
    try {
      for (int i = 0; i < 40; ++i) more.push_back(std::make_unique<Session>(both.device, 1));
      ADD_FAILURE() << "slots for all";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ATTN_NO_MEMORY) << e.what();
    }
    expect_contains(refusal(numbers_toml("relu/relu/relu")), "has no room for");
    EXPECT_THROW(late.read(row(Tokens(300, 4))), Error);  // longer than any source before
  }
  late.read(row(source));
  const Tokens rest = session.generate(0), whole = translated(both.cpu, source, 1);
  made.insert(made.end(), rest.begin(), rest.end());
  EXPECT_EQ(made, whole);
  EXPECT_EQ(late.generate(0), whole);
  more.push_back(std::make_unique<Session>(both.device, 1));
}

#ifndef ATTNKIT_ON_A_GPU  // what the emulator is told
// Addresses come again, as they do where memory is short.
TEST(DeviceModel, IsReadAgainAfterEachAllocationThatFailed) {
  emulator::machine().reuses = true;
  const std::string toml = numbers_toml("softmax/softmax/softmax");
  const Loaded cpu = open(toml, numbers, 1);
  const Tokens source = sources(*cpu, 1, 9)[0], expected = translated(cpu, source, 1, 4);
  int granted = -1;
  for (bool fails = true; fails;) {
    const Loaded model = open(toml, numbers, 2);
    Session session(model, 1);
    emulator::machine().allocations = ++granted;
    try {
      session.read(row(source));
      fails = false;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ATTN_NO_MEMORY) << e.what();
    }
    emulator::machine().allocations = INT_MAX;
    if (fails) session.read(row(source));
    EXPECT_EQ(session.generate(4), expected) << granted;
  }
  EXPECT_GT(granted, 5);
  emulator::machine().reuses = false;
}

// Of the steps that fail behind so many graphs, of which the first step is none.
TEST(DeviceModel, GoesOnBehindAStepThatFailed) {
  for (const int graphs : {0, 2}) {
    const Both both = translators("softmax/softmax/softmax");
    const Tokens source = sources(*both.cpu, 1, 9)[0];
    Session session(both.device, 1), there(both.cpu, 1);
    for (Session* s : {&session, &there}) s->read(row(source));
    emulator::machine().graphs = graphs;
    EXPECT_THROW(session.generate(0), Error);
    emulator::machine().graphs = INT_MAX;
    Session* const self = &there;
    Session::generate({&self, 1}, 0, 1 + graphs);
    expect_near(last(there), last(session), 2e-4f);
    EXPECT_EQ(session.generate(0), there.generate(0)) << graphs;
  }
}

// Rows have changed places for it, and so must their scores.
TEST(DeviceModel, GoesOnBehindAStepOfBeamsThatFailed) {
  const Both both(untrained_toml("softmax"), numbers);
  const Tokens source = sources(*both.cpu, 1, 9)[0];
  Session session(both.device, 3), there(both.cpu, 3);
  for (Session* s : {&session, &there}) s->read(row(source));
  const int graphs = 9;  // behind so many the first row continues another
  emulator::machine().graphs = graphs;
  EXPECT_THROW(session.generate(20), Error);
  emulator::machine().graphs = INT_MAX;
  Session* const self = &there;
  Session::generate({&self, 1}, 20, 1 + graphs);
  const auto first = [](const Session& s) { return std::span(s.last(0), static_cast<size_t>(s.model().outputs())); };
  uint32_t parent = 0;
  std::unique_ptr<Session> same;
  for (float apart = 1; apart > 1e-3f && parent < 3; ++parent) {
    same = there.clone();
    same->reorder({parent, parent, parent});
    apart = 0;
    for (size_t i = 0; i < first(*same).size(); ++i)
      apart = std::max(apart, std::abs(first(session)[i] - first(*same)[i]));
  }
  EXPECT_EQ(parent, 2u);  // one past it
  EXPECT_EQ(session.generate(8), same->generate(8));
}

// As the host's own CUDA has it.
TEST(DeviceModel, LeavesTheThreadItsDevice) {
  emulator::machine().devices = 2;
  const auto current = [] {
    int device = -1;
    cudaGetDevice(&device);
    return device;
  };
  cudaSetDevice(1);
  {
    const Both both = translators("softmax/softmax/softmax");
    EXPECT_EQ(current(), 1);
    const Tokens source = sources(*both.cpu, 1, 9)[0];
    Session session(both.device, 1);
    session.read(row(source));
    EXPECT_EQ(current(), 1);
    EXPECT_EQ(session.generate(3), translated(both.cpu, source, 1, 3));
    EXPECT_EQ(current(), 1);
  }
  EXPECT_EQ(current(), 1);
  cudaSetDevice(0);
  emulator::machine().devices = 1;
}
#endif

TEST(DeviceModel, IsWhereTheManifestSays) {
  const std::string toml = std::regex_replace(numbers_toml("softmax/softmax/softmax"), std::regex("\\[model\\]"),
                                              "device = \"cuda\"\n[model]");
  const auto says_nothing = std::make_shared<Runtime>(folders({ATTNKIT_DEVICE_PLUGINS, ATTNKIT_PLUGIN_FOLDER}), 1, 0);
  const auto cpu = std::make_shared<Runtime>(folders({ATTNKIT_PLUGIN_FOLDER}), 1, 1);
  Diagnostics diagnostics;
  EXPECT_TRUE(Model::load(says_nothing, toml, numbers, diagnostics)->on_device());
  EXPECT_FALSE(Model::load(says_nothing, numbers_toml("softmax/softmax/softmax"), numbers, diagnostics)->on_device());
  EXPECT_FALSE(Model::load(cpu, toml, numbers, diagnostics)->on_device());
}

// In a process of its own, which has loaded no library yet.
void say_refusal_of_library(const char* variable, const char* value) {
  setenv(variable, value, 1);
  setenv("ATTNKIT_DEVICE_LIBRARY", ATTNKIT_DEVICE_LIBRARY_DEFAULT, 0);
  try {
    Device::open(0);
  } catch (const Error& e) {
    std::fprintf(stderr, "%d: %s\n", e.code(), e.what());
  }
  std::_Exit(1);
}

TEST(DeviceLibraryDeathTest, IsRefusedInWords) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(say_refusal_of_library("ATTNKIT_DEVICE_LIBRARY", "/nowhere/lib.so"), testing::ExitedWithCode(1),
              "4: models on a device need attnkit's library for it, and it cannot be loaded: /nowhere/lib.so");
  EXPECT_EXIT(say_refusal_of_library("ATTNKIT_DEVICE_LIBRARY", ATTNKIT_DEVICE_PLUGINS "/relu-cuda.so"),
              testing::ExitedWithCode(1), "4: .*relu-cuda.so: is no library of attnkit for a device");
  EXPECT_EXIT(say_refusal_of_library("ATTNKIT_DEVICE_LIBRARY", ATTNKIT_ANOTHER_VERSION), testing::ExitedWithCode(1),
              "4: .*another version of attnkit .0.0.0; this is");
}

}  // namespace
}  // namespace attnkit::core
