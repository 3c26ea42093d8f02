// A thousand sessions of one model: the memory they take, and that none of them notices the others.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <attnkit/attnkit.hpp>
#include <cstring>
#include <fstream>
#include <thread>

#include "tests/support/sanitized.hpp"

namespace {

constexpr int crowd = 1000, steps = 6;

// Resident memory, after what the allocator keeps was given back.
double resident() {
  malloc_trim(0);
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;)
    if (double kib = 0; word == "Rss:" && file >> kib) return 1024 * kib;
  return 0;
}

attnkit::Ids source_of(int i) {
  attnkit::Ids ids;
  for (int k = 0; k < 3 + i % 5; ++k) ids.push_back(3 + (7 * i + 11 * k) % 90);
  ids.push_back(2);
  return ids;
}

int32_t token_of(int i, int step) { return step == 0 ? 1 : 3 + (13 * i + 5 * step) % 90; }

struct ManySessions : testing::Test {
  const attnkit::Runtime runtime{1};
  const attnkit::Model model{runtime, ATTNKIT_MANIFESTS "/relu.toml"};
  const int64_t outputs = model.info().outputs;
  using Scores = std::vector<float>;  // of all steps

  attnkit::Session begun(int i) const {
    attnkit::Session session(model, 1);
    session.read(source_of(i));
    return session;
  }

  void write(const attnkit::Session& session, int i, int step, Scores& scores) const {
    attnkit_session* const self = session.get();
    float* const to = scores.data() + step * outputs;
    attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector<attnkit::Ids>{{token_of(i, step)}}), to, outputs);
  }

  std::vector<Scores> room() const { return {crowd, Scores(static_cast<size_t>(steps * outputs))}; }

  // Each by itself, one after the other.
  std::vector<Scores> alone() const {
    std::vector<Scores> all = room();
    for (int i = 0; i < crowd; ++i) {
      const attnkit::Session session = begun(i);
      for (int step = 0; step < steps; ++step) write(session, i, step, all[static_cast<size_t>(i)]);
    }
    return all;
  }
};

TEST_F(ManySessions, TakeTheMemoryThatIsPlanned) {
  if (sanitized) GTEST_SKIP() << "sanitizers have memory of their own";
  std::vector<attnkit::Session> sessions;
  std::vector<Scores> scores = room();
  sessions.reserve(crowd + 1);
  const auto add = [&](int i) {
    sessions.push_back(begun(i));
    for (int step = 0; step < steps; ++step) write(sessions.back(), i, step, scores[static_cast<size_t>(i)]);
  };
  for (int i = 0; i < crowd; ++i)
    std::memset(scores[static_cast<size_t>(i)].data(), 1, scores[0].size() * sizeof(float));
  add(0);  // makes what belongs to the model
  const double before = resident();
  for (int i = 0; i < crowd; ++i) add(i);
  const double planned = static_cast<double>(model.info().state_bytes) * crowd, taken = resident() - before;
  ASSERT_GT(before, 0);
  EXPECT_LE(taken, 1.05 * planned);
  EXPECT_GE(taken, 0.95 * planned) << "states are written to, so something was not counted";
}

TEST_F(ManySessions, GiveBitwiseWhatEachGivesAloneFromEightThreads) {
  std::vector<Scores> all = room();
  std::vector<std::thread> threads;
  constexpr int workers = 8;
  for (int t = 0; t < workers; ++t)
    threads.emplace_back([&, t] {
      std::vector<attnkit::Session> mine;
      for (int i = t; i < crowd; i += workers) mine.push_back(begun(i));
      for (int step = 0; step < steps; ++step)
        for (int i = t; i < crowd; i += workers)
          write(mine[static_cast<size_t>(i / workers)], i, step, all[static_cast<size_t>(i)]);
    });
  for (std::thread& t : threads) t.join();
  const std::vector<Scores> expected = alone();
  for (size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(0, std::memcmp(expected[i].data(), all[i].data(), all[i].size() * sizeof(float))) << "session " << i;
}

TEST_F(ManySessions, GiveBitwiseWhatEachGivesAloneInOneCall) {
  std::vector<attnkit::Session> sessions;
  std::vector<attnkit_session*> handles;
  for (int i = 0; i < crowd; ++i) {
    sessions.push_back(begun(i));
    handles.push_back(sessions.back().get());
  }
  const std::vector<Scores> expected = alone();
  Scores together(static_cast<size_t>(crowd * outputs));
  for (int step = 0; step < steps; ++step) {
    std::vector<attnkit::Ids> tokens;
    for (int i = 0; i < crowd; ++i) tokens.push_back({token_of(i, step)});
    attnkit::Session::write(handles, attnkit::Batch(tokens), together.data(), outputs);
    for (int i = 0; i < crowd; ++i)
      ASSERT_EQ(0, std::memcmp(expected[static_cast<size_t>(i)].data() + step * outputs, together.data() + i * outputs,
                               static_cast<size_t>(outputs) * sizeof(float)))
          << "session " << i << ", step " << step;
  }
}

}  // namespace
