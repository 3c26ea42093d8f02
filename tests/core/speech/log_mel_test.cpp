#include "core/speech/log_mel.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

std::vector<float> spectrogram(const LogMel& mel, const std::vector<float>& samples, size_t numbers) {
  std::vector<float> out(numbers);
  mel.apply(samples.data(), static_cast<int64_t>(samples.size()), out.data());
  return out;
}

struct Case {
  int bins;
  std::vector<float> samples;
  std::vector<std::vector<float>> frames;
};

std::vector<Case> golden() {
  std::ifstream file(ATTNKIT_SOURCE_DIR "/tests/core/speech/golden/log_mel.json");
  std::vector<Case> cases;
  const nlohmann::json document = nlohmann::json::parse(file);
  for (const auto& one : document.at("cases")) {
    cases.push_back({one["bins"], one["samples"].get<std::vector<float>>(), one["frames"]});
    for (float& x : cases.back().samples) x /= 32768;
  }
  return cases;
}

TEST(LogMel, IsThatOfTransformers) {
  const std::vector<Case> cases = golden();
  ASSERT_EQ(cases.size(), 4u);
  for (const Case& c : cases) {
    const LogMel mel({16000, c.bins, 25, 10}, static_cast<int64_t>(c.frames.size()));
    const auto width = static_cast<size_t>(c.bins);
    const std::vector<float> made = spectrogram(mel, c.samples, c.frames.size() * width);
    for (size_t j = 0; j < c.frames.size(); ++j)
      for (size_t bin = 0; bin < width; ++bin)
        ASSERT_NEAR(made[j * width + bin], c.frames[j][bin], 2e-6) << "frame " << j << " bin " << bin;
  }
}

TEST(LogMel, SilenceBehindARecordingIsTheSameGivenOrNot) {
  const LogMel mel({16000, 80, 25, 10}, 100);
  EXPECT_EQ(mel.samples(), 16000);
  std::vector<float> samples = golden().front().samples;
  const std::vector<float> alone = spectrogram(mel, samples, 8000);
  samples.resize(16000);
  EXPECT_EQ(spectrogram(mel, samples, 8000), alone);
}

TEST(LogMel, SilenceIsTheLeastThatThereIs) {
  const LogMel mel({16000, 80, 25, 10}, 20);
  EXPECT_THAT(spectrogram(mel, std::vector<float>(100), 1600), testing::Each(-1.5f));
}

TEST(LogMel, IsTheSameInAllThreads) {
  const LogMel mel({16000, 80, 25, 10}, 60);
  const std::vector<float> samples = golden().front().samples, expected = spectrogram(mel, samples, 4800);
  std::vector<std::vector<float>> made(4);
  std::vector<std::thread> threads;
  for (auto& one : made) threads.emplace_back([&] { one = spectrogram(mel, samples, 4800); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(made, testing::Each(expected));
}

void expect_refused(const FbankSpec& spec, int64_t frames, const char* message) {
  try {
    const LogMel made(spec, frames);
    FAIL() << message;
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr(message));
  }
}

TEST(LogMel, RefusesWhatCannotBeComputed) {
  expect_refused({16000, 512, 25, 10}, 3000, "bins 512 are too many");
  expect_refused({16000, 80, 25.1, 10}, 3000, "are 401 samples; log_mel needs an even number");
  expect_refused({11025, 80, 25.4, 10}, 3000, "other prime factors than 2, 3 and 5");
  expect_refused({16000, 80, 25, 10}, 1, "1 frames every 160 samples are too few for windows of 400");
}

}  // namespace
}  // namespace attnkit::core
