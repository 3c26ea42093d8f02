// The shipped model through core and plugins against PyTorch: rows and logits of a few inputs, and the greedy tokens of
// the test set for every placement.  ATTNKIT_PARITY_STRIDE=1 decodes all lists (minutes); the default takes every 50th.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>
#include <sstream>

#include "core/model/model.hpp"
#include "core/session/session.hpp"

namespace attnkit::core {
namespace {

const std::string folder = ATTNKIT_MODEL_FOLDER;

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::shared_ptr<Runtime> runtime() {
  static const auto shared = std::make_shared<Runtime>(std::vector<std::string>{ATTNKIT_PLUGIN_FOLDER}, 0, 1);
  return shared;
}

// The shipped manifest with the three blocks' mechanisms replaced; placement:
// "encoder.self/decoder.self/decoder.cross".
std::string manifest(const std::string& placement) {
  std::string toml = read_text(folder + "/model.toml"), mechanism;
  std::istringstream parts(placement);
  for (const char* role : {"encoder.self", "decoder.self", "decoder.cross"}) {
    std::getline(parts, mechanism, '/');
    toml = std::regex_replace(toml, std::regex("\"" + std::string(role) + "\" *= *\"[a-z]*\""),
                              "\"" + std::string(role) + "\" = \"" + mechanism + "\"");
  }
  return toml;
}

std::shared_ptr<const Model> load(const std::string& placement) {
  const std::string toml = manifest(placement);
  Diagnostics diagnostics;
  auto model = Model::load(runtime(), toml, folder, diagnostics);
  EXPECT_TRUE(model) << toml;
  return model;
}

uint32_t crc(const std::vector<int32_t>& ids) {
  boost::crc_32_type sum;
  sum.process_bytes(ids.data(), ids.size() * sizeof(int32_t));
  return sum.checksum();
}

// Greedy outputs of many sources at once: all sessions that have not ended take their next token in one write.
std::vector<std::vector<int32_t>> decode(const std::shared_ptr<const Model>& model,
                                         const std::vector<std::vector<int32_t>>& sources) {
  const int32_t end = model->vocabulary(true)->end_id();
  std::vector<std::vector<int32_t>> outputs(sources.size());
  std::vector<size_t> order(sources.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sources[a].size() < sources[b].size(); });
  for (size_t first = 0; first < order.size(); first += 64) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::pair<Session*, size_t>> open;
    for (size_t i = first; i < std::min(order.size(), first + 64); ++i) {
      const std::vector<int32_t>& s = sources[order[i]];
      sessions.push_back(std::make_unique<Session>(model, 1));
      sessions.back()->read(Ids{s.data(), static_cast<int64_t>(s.size()), 1, static_cast<int64_t>(s.size()), nullptr});
      open.emplace_back(sessions.back().get(), order[i]);
    }
    std::vector<int32_t> next(open.size(), model->vocabulary(true)->begin_id());
    while (!open.empty()) {
      std::vector<Session*> pointers;
      for (const auto& o : open) pointers.push_back(o.first);
      Session::write(pointers, {next.data(), 1, static_cast<int64_t>(next.size()), 1, nullptr}, nullptr);
      next.clear();
      std::vector<std::pair<Session*, size_t>> still;
      for (const auto& [session, i] : open) {
        const float* scores = session->last(0);
        const int32_t id = static_cast<int32_t>(std::max_element(scores, scores + model->outputs()) - scores);
        outputs[i].push_back(id);
        if (id == end || static_cast<int64_t>(outputs[i].size()) >= session->default_limit()) continue;
        still.emplace_back(session, i);
        next.push_back(id);
      }
      open = std::move(still);
    }
  }
  return outputs;
}

nlohmann::json expected_index() { return nlohmann::json::parse(read_text(folder + "/expected/test-crc32.json")); }

std::vector<std::string> placements() {
  std::ifstream in(folder + "/expected/test-crc32.json");
  return in ? nlohmann::json::parse(in)["placements"].get<std::vector<std::string>>() : std::vector<std::string>{};
}

class NumbersEnDe : public testing::TestWithParam<std::string> {};

TEST_P(NumbersEnDe, GreedyTokensEqualPyTorch) {
  const nlohmann::json index = expected_index();
  const std::vector<std::string> rows = index["placements"];
  const size_t row = static_cast<size_t>(std::find(rows.begin(), rows.end(), GetParam()) - rows.begin()),
               lists = index["lists"];
  const std::string sums = read_text(folder + "/expected/test-crc32.bin");
  ASSERT_EQ(sums.size(), rows.size() * lists * 4);
  const char* chosen = std::getenv("ATTNKIT_PARITY_STRIDE");
  const size_t stride = chosen ? std::max(1, std::atoi(chosen)) : 50;
  const auto model = load(GetParam());
  ASSERT_TRUE(model);
  std::vector<std::vector<int32_t>> sources;
  std::vector<size_t> numbers;
  std::istringstream lines(read_text(folder + "/test.tsv"));
  std::string line;
  // Another first list in each placement, so that the short run covers more of them.
  for (size_t i = 0; std::getline(lines, line); ++i) {
    if (i % stride != row % stride) continue;
    sources.push_back(model->vocabulary(false)->tokenize(line.substr(0, line.find('\t'))));
    sources.back().push_back(model->vocabulary(false)->end_id());
    numbers.push_back(i);
  }
  const std::vector<size_t> ties = index["ties"].value(GetParam(), std::vector<size_t>{});
  size_t different = 0, tied = 0;
  const auto outputs = decode(model, sources);
  for (size_t i = 0; i < outputs.size(); ++i) {
    uint32_t sum;
    std::memcpy(&sum, sums.data() + (row * lists + numbers[i]) * 4, 4);
    if (crc(outputs[i]) == sum) continue;
    if (std::find(ties.begin(), ties.end(), numbers[i]) != ties.end())
      ++tied;
    else
      ++different;
  }
  EXPECT_EQ(different, 0u) << "of " << outputs.size() << " lists";
  std::cout << GetParam() << ": " << outputs.size() << " lists, " << different << " different, " << tied
            << " different at a tie below 1e-5\n";
}

INSTANTIATE_TEST_SUITE_P(Placements, NumbersEnDe, testing::ValuesIn(placements()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

TEST(NumbersEnDeSamples, EncoderRowsAndLogitsEqualPyTorch) {
  const char* other = std::getenv("ATTNKIT_SAMPLES");
  const nlohmann::json golden = nlohmann::json::parse(read_text(other ? other : folder + "/expected/samples.json"));
  ASSERT_FALSE(golden["samples"].empty());
  double worst = 0;
  for (const auto& sample : golden["samples"])
    for (const auto& [placement, expected] : sample["outputs"].items()) {
      const auto model = load(placement);
      ASSERT_TRUE(model);
      const std::vector<int32_t> source = sample["source"], entered = sample["entered"];
      std::vector<int32_t> tokens = model->vocabulary(false)->tokenize(sample["text"].get<std::string>());
      tokens.push_back(model->vocabulary(false)->end_id());
      EXPECT_EQ(tokens, source);
      const auto compare = [&, &placement = placement, &expected = expected](const char* what, const float* ours) {
        const std::vector<double> theirs = expected[what];
        for (size_t i = 0; i < theirs.size(); ++i) {
          worst = std::max(worst, std::abs(ours[i] - theirs[i]));
          ASSERT_NEAR(ours[i], theirs[i], 1e-4) << placement << " " << what << "[" << i << "] of " << sample["text"];
        }
      };
      const int64_t s = static_cast<int64_t>(source.size()), t = static_cast<int64_t>(entered.size()),
                    d = model->manifest().d_model;
      const WorkspacePool::Lease ws = model->lease();
      Aux aux;
      const SourcePart part{source.data(), nullptr, s};
      const float* hidden = model->encoder().run(*ws, std::span(&part, 1), {}, aux);
      compare("encoder_last", hidden + (s - 1) * d);
      std::vector<float> logits(static_cast<size_t>(t * model->outputs()));
      model->forward(Ids{source.data(), s, 1, s, nullptr}, {entered.data(), t, 1, t, nullptr}, logits.data());
      compare("logits_last", logits.data() + (t - 1) * model->outputs());
      EXPECT_EQ(decode(model, {source})[0], expected["greedy"].get<std::vector<int32_t>>())
          << placement << ": " << sample["text"];
    }
  std::cout << "largest difference " << worst << "\n";
}

// The shipped predictors behind every mechanism in the encoder.
TEST(NumbersEnDeLength, PredictionsEqualPyTorch) {
  const nlohmann::json golden = nlohmann::json::parse(read_text(folder + "/expected/length.json"));
  ASSERT_GT(golden["samples"].size(), 10u);
  const auto loaded = [](const std::string& encoder, const std::string& length) {
    std::string toml = manifest(encoder + "/cosformer/cosformer");
    toml = std::regex_replace(toml, std::regex("predict = \"ratio\"\nalpha = [0-9.]*"), length);
    Diagnostics diagnostics;
    auto model = Model::load(runtime(), toml, folder, diagnostics);
    EXPECT_TRUE(model) << toml;
    return model;
  };
  const auto predicted = [](const std::shared_ptr<const Model>& model, const std::string& text) {
    std::vector<int32_t> ids = model->vocabulary(false)->tokenize(text);
    ids.push_back(model->vocabulary(false)->end_id());
    const auto n = static_cast<int64_t>(ids.size());
    Session session(model, 1);
    session.read(Ids{ids.data(), n, 1, n, nullptr});
    return *session.target_total();
  };
  const auto table = loaded("relu", "predict = \"lut\"\nlut = \"lengths.tsv\"\ndampening = 1.0");
  for (const auto& sample : golden["samples"])
    EXPECT_NEAR(predicted(table, sample["text"]), sample["lut"], 1e-9) << sample["text"];
  for (const std::string encoder : {"softmax", "relu", "cosformer", "leap"}) {
    const auto network = loaded(encoder, "predict = \"network\"\nfile = \"length.safetensors\"");
    for (const auto& sample : golden["samples"])
      EXPECT_EQ(predicted(network, sample["text"]), sample["network"][encoder]) << encoder << ": " << sample["text"];
  }
}

}  // namespace
}  // namespace attnkit::core
