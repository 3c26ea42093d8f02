// samples/manifests/every-layer.toml: a decoder with another mechanism in every layer decodes 4,096 tokens, token by
// token, as the whole sequence would, with the states that were declared.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>

#include "core/session/session.hpp"

namespace attnkit::test {

using namespace core;
namespace {

constexpr int64_t tokens = 4096;

std::shared_ptr<const Model> load() {
  std::ifstream file(ATTNKIT_MANIFESTS "/every-layer.toml");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Diagnostics diagnostics;
  auto runtime = std::make_shared<Runtime>(std::vector<std::string>{ATTNKIT_PLUGIN_FOLDER}, 2, 1);
  auto model = Model::load(runtime, text, ATTNKIT_MANIFESTS, diagnostics);
  for (const Diagnostic& d : diagnostics.sorted()) ADD_FAILURE() << d.message;
  return model;
}

// A text that repeats nothing for long.
std::vector<int32_t> text_of(const Model& model) {
  const int32_t vocabulary = static_cast<int32_t>(model.vocabulary(true)->size());
  std::vector<int32_t> ids = {model.vocabulary(true)->begin_id()};
  uint32_t x = 1;
  while (static_cast<int64_t>(ids.size()) < tokens) {
    x = x * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>(3 + (x >> 8) % static_cast<uint32_t>(vocabulary - 3)));
  }
  return ids;
}

std::vector<float> write(Session& session, int32_t id) {
  std::vector<float> scores(static_cast<size_t>(session.model().outputs()));
  Session* const self = &session;
  Session::write({&self, 1}, {&id, 1, 1, 1, nullptr}, scores.data());
  return scores;
}

class EveryLayer : public testing::Test {
 protected:
  const std::shared_ptr<const Model> model_ = load();
};

TEST_F(EveryLayer, HasAnotherMechanism) {
  ASSERT_TRUE(model_);
  std::set<std::string> names;
  for (const BlockChoice& block : model_->manifest().blocks) EXPECT_TRUE(names.insert(block.mechanism).second);
  EXPECT_GE(names.size(), 11u);
}

TEST_F(EveryLayer, DecodesAsTheWholeSequence) {
  ASSERT_TRUE(model_);
  const std::vector<int32_t> ids = text_of(*model_);
  const auto width = static_cast<size_t>(model_->outputs());
  std::vector<float> whole(ids.size() * width);
  model_->forward({}, {ids.data(), tokens, 1, tokens, nullptr}, whole.data());
  Session session(model_, 1);
  double error = 0, size = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const std::vector<float> scores = write(session, ids[static_cast<size_t>(t)]);
    for (size_t c = 0; c < width; ++c) {
      const double x = whole[static_cast<size_t>(t) * width + c];
      error += (scores[c] - x) * (scores[c] - x);
      size += x * x;
    }
  }
  ASSERT_TRUE(std::isfinite(error));
  // Rounding grows through eleven layers; one alone is held to 5e-6.
  EXPECT_LE(std::sqrt(error / size), 1e-4);
  RecordProperty("error", std::to_string(1e9 * std::sqrt(error / size)) + "e-9");
}

// A clone gets the declared bytes of each state and nothing else, in slots that another session has used.
TEST_F(EveryLayer, TheDeclaredBytesAreAllThatGoesOn) {
  ASSERT_TRUE(model_);
  const std::vector<int32_t> ids = text_of(*model_);
  Session session(model_, 1);
  {
    Session dirty(model_, 1);
    for (int64_t t = 0; t < 300; ++t) write(dirty, ids[static_cast<size_t>(tokens - 1 - t)]);
  }
  for (int64_t t = 0; t < 600; ++t) {
    const int32_t id = ids[static_cast<size_t>(t)];
    if (t % 97 != 5) {
      write(session, id);
      continue;
    }
    const std::unique_ptr<Session> clone = session.clone();
    EXPECT_EQ(write(session, id), write(*clone, id)) << "at " << t;
  }
}

TEST_F(EveryLayer, OnlySoftmaxGrows) {
  ASSERT_TRUE(model_);
  for (const Block* block : model_->blocks()) {
    const bool grows = block->state_bytes(tokens) > block->state_bytes(512);
    EXPECT_EQ(block->choice().mechanism == "softmax", grows) << block->choice().mechanism;
  }
}

}  // namespace
}  // namespace attnkit::test
