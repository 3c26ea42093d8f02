#include "core/stream/speech_log.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace attnkit::stream {
namespace {

using Ends = std::vector<int64_t>;

const SpeechShape shape{16000, 400, 160, 4};

// Rows of the encoder, counted one frame after the other.
int64_t counted(int64_t samples) {
  int64_t frames = 0;
  while (frames * 160 + 400 <= samples) ++frames;
  return frames / 4;
}

TEST(SpeechShape, RowsAreWholeGroupsOfFrames) {
  for (int64_t samples = 0; samples < 6000; samples += 7) EXPECT_EQ(shape.rows(samples), counted(samples)) << samples;
  EXPECT_EQ(shape.samples(1), 880);
  for (int64_t row = 1; row < 40; ++row) {
    EXPECT_EQ(shape.rows(shape.samples(row)), row);
    EXPECT_EQ(shape.rows(shape.samples(row) - 1), row - 1);
  }
}

TEST(SpeechShape, IsThatOfTheModel) {
  attnkit_model_info info{};
  info.sample_rate = 8000, info.frame_length = 200, info.frame_shift = 80, info.subsampling = 2;
  const SpeechShape made = speech_shape(info);
  EXPECT_EQ(made.samples(1), 280);
  EXPECT_EQ(made.ms(280), 35);
  EXPECT_EQ(made.samples_in(35), 280);
  EXPECT_EQ(made.samples_in(0.01), 1);
}

TEST(SpeechEnds, AreThoseOfRowsAndTheRestComesWithTheLast) {
  EXPECT_EQ(speech_ends(shape, 880, 0), (Ends{880}));
  EXPECT_EQ(speech_ends(shape, 1519, 0), (Ends{1519}));
  EXPECT_EQ(speech_ends(shape, 1520, 0), (Ends{880, 1520}));
  EXPECT_EQ(speech_ends(shape, 2300, 0), (Ends{880, 1520, 2300}));
  EXPECT_EQ(speech_ends(shape, 5, 0), (Ends{5}));
}

TEST(SpeechEnds, AreThoseOfChunks) {
  EXPECT_EQ(speech_ends(shape, 1000, 400), (Ends{400, 800, 1000}));
  EXPECT_EQ(speech_ends(shape, 800, 400), (Ends{400, 800}));
  EXPECT_EQ(speech_ends(shape, 399, 400), (Ends{399}));
}

TEST(SpeechLog, AWordIsWrittenWithItsLastToken) {
  const std::vector<SpeechWrite> writes = {{880, 0.1}, {1520, 0.2}, {1600, 0.4}};
  const LatencyLog log = speech_log(shape, 1600, writes, std::vector<WordSpan>{{0, 1}, {2, 2}}, 7);
  EXPECT_EQ(log.delays, (std::vector<double>{95, 100}));
  EXPECT_EQ(log.elapsed, (std::vector<double>{95 + 200, 100 + 400}));
  EXPECT_EQ(log.source_length, 100);
  EXPECT_EQ(log.reference_length, 7);
}

// golden/latency.py had SimulEval read the same chunks and write at the same times: neither delays nor times are cut at
// the source's length, and times go on where computing takes longer than the speech.
TEST(SpeechLog, IsWhatSimulEvalLogs) {
  std::ifstream file(ATTNKIT_SOURCE_DIR "/tests/core/stream/golden/latency.json");
  const nlohmann::json all = nlohmann::json::parse(file);
  size_t cases = 0;
  for (const nlohmann::json& c : all["cases"]) {
    if (c["kind"] != "speech") continue;
    SCOPED_TRACE(c["name"]);
    ++cases;
    const nlohmann::json& actions = c["actions"];
    const SpeechShape made{actions["sample_rate"], 400, 160, 4};
    const int64_t samples = actions["samples"];
    const Ends ends = speech_ends(made, samples, made.samples_in(actions["chunk_ms"]));
    std::vector<SpeechWrite> writes;
    std::vector<WordSpan> words;
    for (const nlohmann::json& write : actions["writes"]) {
      words.push_back({writes.size(), writes.size()});
      writes.push_back({ends.at(write[0].get<size_t>() - 1), write[1]});
    }
    const LatencyLog log = speech_log(made, samples, writes, words, c["reference_length"].get<double>());
    EXPECT_EQ(log.delays, c["delays"].get<std::vector<double>>());
    EXPECT_EQ(log.elapsed, c["elapsed"].get<std::vector<double>>());
    EXPECT_EQ(log.source_length, c["source_length"].get<double>());
    EXPECT_DOUBLE_EQ(latency(log)->al, c["al"].get<double>());
    EXPECT_DOUBLE_EQ(latency(log)->dal, c["dal"].get<double>());
    EXPECT_DOUBLE_EQ(computation_aware_latency(log)->laal, c["laal_ca"].get<double>());
  }
  EXPECT_GE(cases, 10u);
}

}  // namespace
}  // namespace attnkit::stream
