// A small model that takes speech against what PyTorch computed with its weights (speech_golden.py), from frames and
// from samples, whole and in a session.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/model/model.hpp"
#include "core/session/session.hpp"

namespace attnkit::core {
namespace {

const std::string folder = ATTNKIT_GOLDEN_FOLDER;

std::vector<float> golden(const std::string& name) {
  const Weights all = Weights::open(folder + "/golden.safetensors", "");
  const StoredTensor* tensor = all.find(name);
  return tensor ? all.f32(name, tensor->shape) : std::vector<float>();
}

std::shared_ptr<const Model> load() {
  std::ifstream in(folder + "/model.toml");
  const std::string toml{std::istreambuf_iterator<char>(in), {}};
  Diagnostics diagnostics;
  auto model = Model::load(std::make_shared<Runtime>(std::vector<std::string>{ATTNKIT_PLUGIN_FOLDER}, 1, 1), toml,
                           folder, diagnostics);
  for (const Diagnostic& d : diagnostics.sorted()) ADD_FAILURE() << d.message;
  return model;
}

double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double error = 0, scale = 0;
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    error += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    scale += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(error / scale);
}

std::vector<int32_t> target() {
  const std::vector<float> numbers = golden("target");
  return {numbers.begin(), numbers.end()};
}

std::vector<float> forward(const Model& model, const SourceBatch& source) {
  const std::vector<int32_t> ids = target();
  const auto n = static_cast<int64_t>(ids.size());
  std::vector<float> out(ids.size() * static_cast<size_t>(model.outputs()));
  model.forward(source, {ids.data(), n, 1, n, nullptr}, out.data());
  return out;
}

SourceBatch frames_of(const Model& model, const std::vector<float>& frames) {
  const int64_t bins = model.frontend()->table().features.bins;
  return SourceBatch::frames(frames.data(), static_cast<int64_t>(frames.size()) / bins, bins);
}

TEST(SpeechParity, LogitsOfFramesArePyTorchs) {
  const auto model = load();
  ASSERT_TRUE(model);
  const std::vector<float> frames = golden("frames");
  ASSERT_FALSE(frames.empty());
  EXPECT_LT(relative_error(forward(*model, frames_of(*model, frames)), golden("logits")), 5e-6);
}

TEST(SpeechParity, LogitsOfSamplesArePyTorchs) {
  const auto model = load();
  ASSERT_TRUE(model);
  const std::vector<float> samples = golden("samples");
  ASSERT_FALSE(samples.empty());
  EXPECT_LT(relative_error(forward(*model, SourceBatch::samples(samples.data(), static_cast<int64_t>(samples.size()))),
                           golden("logits")),
            5e-6);
}

TEST(SpeechParity, SessionsGiveTheSame) {
  const auto model = load();
  ASSERT_TRUE(model);
  const std::vector<float> samples = golden("samples");
  const SourceBatch all = SourceBatch::samples(samples.data(), static_cast<int64_t>(samples.size()));
  Session session(model, 1);
  for (int64_t i = 0; i < all.length; i += 777)
    session.read(all.part(i, std::min(all.length, i + 777)), i + 777 >= all.length);
  Session* const self = &session;
  std::vector<float> found;
  for (const int32_t id : target()) {
    std::vector<float> logits(static_cast<size_t>(model->outputs()));
    Session::write({&self, 1}, {&id, 1, 1, 1, nullptr}, logits.data());
    found.insert(found.end(), logits.begin(), logits.end());
  }
  EXPECT_LT(relative_error(found, golden("logits")), 5e-6);
}

}  // namespace
}  // namespace attnkit::core
