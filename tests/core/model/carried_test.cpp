// Sequences that travel from block to block (ATTN_AUX_IN, ATTN_AUX_OUT) through sessions.
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/api/describe.hpp"
#include "core/session/session.hpp"
#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

const std::vector<int32_t> source = {3, 4, 5, 6, 7, 2}, target = {1, 8, 9, 4, 3, 3, 7};

std::shared_ptr<const Model> load_with(const std::string& attention) {
  TinyModel tiny;
  tiny.attention = attention;
  const TempFolder folder;
  write_tiny(folder, tiny);
  Diagnostics diagnostics;
  const std::vector<std::string> plugins = {ATTNKIT_CARRIER_PLUGIN, ATTNKIT_PLUGIN_FOLDER};
  auto model = Model::load(std::make_shared<Runtime>(plugins, 1, 1), tiny.manifest(), folder.path(), diagnostics);
  EXPECT_TRUE(model) << all_messages(diagnostics);
  return model;
}

std::vector<float> write(std::vector<Session*> sessions, std::vector<int32_t> ids, int64_t length) {
  const auto rows = static_cast<int64_t>(ids.size()) / length;
  std::vector<float> logits(ids.size() * static_cast<size_t>(sessions[0]->model().outputs()), NAN);
  Session::write(sessions, {ids.data(), length, rows, length, nullptr}, logits.data());
  return logits;
}

const char* const carried = "default = \"fake_carrier\"\n\"decoder.self\" = \"softmax\"\n";

TEST(Carried, StepByStepEqualsTheWholeSequence) {
  const auto model = load_with(carried);
  std::vector<float> whole(target.size() * static_cast<size_t>(model->outputs()));
  model->forward(ids_of(source), ids_of(target), whole.data());
  Session session(model, 1);
  session.read(ids_of(source));
  std::vector<float> steps;
  for (const int32_t id : target)
    for (const float x : write({&session}, {id}, 1)) steps.push_back(x);
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(whole[i], steps[i], 1e-4 * (1 + std::abs(whole[i])));
}

TEST(Carried, RowsOfManySessionsEachHaveTheirOwn) {
  const auto model = load_with(carried);
  Session one(model, 1), three(model, 3), alone(model, 1);
  for (Session* s : {&one, &three, &alone}) s->read(ids_of(source));
  const std::vector<float> together = write({&three, &one}, {4, 5, 6, 7}, 1), single = write({&alone}, {7}, 1);
  EXPECT_TRUE(std::equal(single.begin(), single.end(), together.end() - static_cast<int64_t>(single.size())));
  const auto copy = alone.clone();
  EXPECT_EQ(write({&alone}, {3}, 1), write({copy.get()}, {3}, 1));
}

TEST(Carried, SequencesOfTheEncoderCountAsState) {
  const auto model = load_with(carried);
  Session session(model, 1);
  EXPECT_EQ(nlohmann::json::parse(describe_session(session))["carried_bytes"], 0) << "nothing was read";
  session.read(ids_of(source));
  const auto described = nlohmann::json::parse(describe_session(session));
  EXPECT_GT(model->carried_bytes(), 0u);
  EXPECT_EQ(described["carried_bytes"], model->carried_bytes());
  uint64_t blocks = 0;
  for (const auto& block : described["blocks"]) blocks += block["state_bytes"].get<uint64_t>();
  EXPECT_EQ(described["state_bytes"], blocks + model->carried_bytes());
  EXPECT_EQ(load_with("default = \"softmax\"\n")->carried_bytes(), 0u);
}

TEST(Carried, NothingOfTheTargetReachesCrossBlocks) {
  const auto model = load_with("default = \"fake_carrier\"\n");
  try {
    Session session(model, 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(ATTN_UNSUPPORTED, e.code());
    EXPECT_NE(std::string::npos, std::string(e.what()).find("decoder.self.1 gives the sequence \"carried\""));
  }
}

TEST(Carried, WithoutValuesThereAreNoWeightsToShow) {
  const auto model = load_with(carried);
  std::vector<float> weights(2 * source.size() * source.size());
  const Probe probe{ATTN_ENCODER_SELF, 1, weights.data()};
  try {
    model->forward(ids_of(source), ids_of(target), nullptr, &probe);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(ATTN_UNSUPPORTED, e.code());
    EXPECT_STREQ("encoder.self.1: \"fake_carrier\" has no values \"v\" whose weights could be shown", e.what());
  }
}

}  // namespace
}  // namespace attnkit::test
