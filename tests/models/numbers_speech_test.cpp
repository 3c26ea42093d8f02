// The shipped speech model on recordings, through the ABI, against PyTorch's outputs for every placement and lag:
// samples, log-mel frames, convolutions, a causal encoder that grows, and wait-k all have to agree for that.
#include <gtest/gtest.h>
#include <sndfile.h>

#include <attnkit/attnkit.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

namespace {

using nlohmann::json;

const std::string folder = ATTNKIT_MODEL_FOLDER;
constexpr int64_t kPreDecision = 8;  // of the manifest

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

const attnkit::Runtime& runtime() {
  static const attnkit::Runtime shared(1, ATTNKIT_PLUGIN_FOLDER);
  return shared;
}

// The shipped manifest with the mechanisms of the three roles replaced.
attnkit::Model load(const std::vector<std::string>& placement) {
  std::string toml = read_text(folder + "/model.toml");
  const std::string roles[] = {"encoder.self", "decoder.self", "decoder.cross"};
  for (size_t r = 0; r < 3; ++r) {
    std::string key = "\"";
    key.append(roles[r]).append("\" = \"");
    toml = std::regex_replace(toml, std::regex(key + "[a-z]*"), key + placement[r]);
  }
  return {runtime(), toml, folder};
}

std::vector<float> recording(const std::string& name) {
  SF_INFO info{};
  SNDFILE* file = sf_open((folder + "/recordings/" + name).c_str(), SFM_READ, &info);
  EXPECT_TRUE(file) << name;
  std::vector<float> samples(static_cast<size_t>(info.frames));
  EXPECT_EQ(sf_readf_float(file, samples.data(), info.frames), info.frames);
  sf_close(file);
  return samples;
}

// lag 0: offline.
attnkit::Ids translate(const attnkit::Model& model, const std::vector<float>& samples, int64_t lag, uint32_t limit) {
  attnkit::Session session(model, 1);
  const auto decide = [&](const attnkit_stream_view& view) {
    const bool ready = lag > 0 && view.read >= (lag + view.written) * kPreDecision;
    return view.ended || ready ? ATTNKIT_WRITE : ATTNKIT_READ;
  };
  return session.simulate(
      samples, {}, decide, [](const attnkit_stream_event&) {}, limit);
}

class NumbersSpeech : public testing::TestWithParam<size_t> {};

TEST_P(NumbersSpeech, OutputsEqualPyTorch) {
  const char* mechanisms[] = {"softmax", "relu", "leap"};
  const std::vector<std::string> placement = {mechanisms[GetParam() / 9], mechanisms[GetParam() / 3 % 3],
                                              mechanisms[GetParam() % 3]};
  const attnkit::Model model = load(placement);
  std::map<std::string, std::vector<float>> recordings;
  int compared = 0, ties = 0;
  for (const json& expected : json::parse(read_text(folder + "/expected.json"))) {
    if (expected["placement"] != placement) continue;
    const std::string name = expected["file"];
    if (!recordings.contains(name)) recordings[name] = recording(name);
    const attnkit::Ids wanted = expected["ids"];
    const int64_t lag = expected["k"].is_null() ? 0 : expected["k"].get<int64_t>();
    const attnkit::Ids ours = translate(model, recordings[name], lag, static_cast<uint32_t>(wanted.size()));
    ++compared;
    // Two scores as close as this may come out either way in another order of additions.
    if (ours != wanted && expected["margin"] < 2e-3)
      ++ties;
    else
      EXPECT_EQ(ours, wanted) << name << ", k " << expected["k"];
  }
  EXPECT_EQ(compared, 32);
  EXPECT_LE(ties, 2);
}

INSTANTIATE_TEST_SUITE_P(Placements, NumbersSpeech, testing::Range(size_t{0}, size_t{27}));

}  // namespace
