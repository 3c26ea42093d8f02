#include "core/speech/fbank.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <random>
#include <thread>

#include "core/base/error.hpp"
#include "tests/allocation/counted_new.hpp"

namespace attnkit::core {
namespace {

using Rows = std::vector<float>;  // frames, bins

std::vector<float> noise(size_t samples, uint32_t seed = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> draw(0, 0.1f);
  std::vector<float> made(samples);
  for (float& x : made) x = draw(engine);
  return made;
}

Rows frames_of(const Fbank& fbank, const std::vector<float>& samples, int bins) {
  Rows out(static_cast<size_t>(fbank.frames(static_cast<int64_t>(samples.size())) * bins));
  fbank.apply(samples.data(), fbank.frames(static_cast<int64_t>(samples.size())), out.data());
  return out;
}

double mel(double hz) { return 1127 * std::log(1 + hz / 700); }

// Of the energy at one frequency, what falls to a bin whose top is at mark `bin` + 1 of marks that divide the scale.
double share(const FbankSpec& spec, double hz, int bin) {
  const double marks = (mel(hz) - mel(20)) / (mel(spec.sample_rate / 2.0) - mel(20)) * (spec.bins + 1);
  return std::max(0.0, 1 - std::abs(marks - (bin + 1)));
}

// One frame by definition: a DFT as a sum, every bin over every frequency below Nyquist.
std::vector<double> defined(const FbankSpec& spec, const float* samples) {
  const auto n = static_cast<size_t>(spec.frame_length());
  size_t points = 1;
  while (points < n) points *= 2;
  std::vector<double> x(samples, samples + n), y(n), bins(static_cast<size_t>(spec.bins));
  double mean = 0;
  for (const double s : x) mean += s / static_cast<double>(n);
  for (size_t i = 0; i < n; ++i) {
    const double hann = std::pow(std::sin(std::numbers::pi * static_cast<double>(i) / static_cast<double>(n - 1)), 2);
    y[i] = 32768 * (x[i] - mean - 0.97 * (x[i ? i - 1 : 0] - mean)) * std::pow(hann, 0.85);
  }
  for (size_t k = 1; k < points / 2; ++k) {
    double re = 0, im = 0;
    for (size_t i = 0; i < n; ++i) {
      const double angle = 2 * std::numbers::pi * static_cast<double>(i * k % points) / static_cast<double>(points);
      re += y[i] * std::cos(angle);
      im -= y[i] * std::sin(angle);
    }
    const double hz = static_cast<double>(k) * spec.sample_rate / static_cast<double>(points);
    for (int b = 0; b < spec.bins; ++b) bins[static_cast<size_t>(b)] += share(spec, hz, b) * (re * re + im * im);
  }
  for (double& b : bins) b = std::log(std::max<double>(b, std::numeric_limits<float>::epsilon()));
  return bins;
}

// Written by fbank_golden.py with torchaudio 2.11, in its float64.
nlohmann::json golden() {
  std::ifstream file(ATTNKIT_SOURCE_DIR "/tests/core/speech/golden/fbank.json");
  return nlohmann::json::parse(file);
}

FbankSpec spec_of(const nlohmann::json& c) { return {c["sample_rate"], c["bins"], c["window_ms"], c["shift_ms"]}; }

std::vector<float> samples_of(const nlohmann::json& c) {
  std::vector<float> samples;
  for (const int s : c["samples"]) samples.push_back(static_cast<float>(s) / 32768);
  return samples;
}

// Required is 1e-3.  Worst seen: 2.6e-4; torchaudio's mel scale is f32 always.
TEST(Fbank, IsThatOfTorchaudio) {
  const nlohmann::json all = golden();
  ASSERT_EQ(all["cases"].size(), 35u);
  double worst = 0;
  for (const nlohmann::json& c : all["cases"]) {
    SCOPED_TRACE(fmt::format("{} at {} Hz", c["name"].get<std::string>(), c["sample_rate"].get<int>()));
    const Rows made = frames_of(Fbank(spec_of(c)), samples_of(c), c["bins"]);
    const size_t bins = c["bins"];
    ASSERT_EQ(made.size(), c["frames"].size() * bins);
    for (size_t i = 0; i < made.size(); ++i) {
      const double difference = std::abs(made[i] - c["frames"][i / bins][i % bins].get<double>());
      worst = std::max(worst, difference);
      ASSERT_LT(difference, 1e-3) << "frame " << i / bins << ", bin " << i % bins;
    }
  }
  RecordProperty("worst", fmt::format("{:.2e}", worst));
  std::printf("worst difference %.2e\n", worst);
}

// f32 rounds what is up to 25 by up to 1e-6.
TEST(Fbank, IsTheDefinition) {
  const nlohmann::json all = golden();
  double worst = 0;
  size_t compared = 0;
  for (const nlohmann::json& c : all["cases"]) {
    const FbankSpec spec = spec_of(c);
    const std::vector<float> samples = samples_of(c);
    const Rows made = frames_of(Fbank(spec), samples, spec.bins);
    const std::vector<double> first = defined(spec, samples.data());
    for (size_t b = 0; b < first.size(); ++b) {
      const double difference = std::abs(made[b] - first[b]);
      worst = std::max(worst, difference);
      ASSERT_LT(difference, 2e-6) << "bin " << b;  // a NaN, which max passes over, fails here
    }
    compared += first.size();
  }
  EXPECT_EQ(compared, 7u * (80 + 40 + 23 + 64 + 128));
  std::printf("worst difference %.2e\n", worst);
}

TEST(Fbank, FramesAreCountedAsWindowsThatFit) {
  const Fbank fbank(FbankSpec{});
  for (const auto& [samples, frames] : std::vector<std::pair<int64_t, int64_t>>{{-1, 0},
                                                                                {0, 0},
                                                                                {399, 0},
                                                                                {400, 1},
                                                                                {559, 1},
                                                                                {560, 2},
                                                                                {719, 2},
                                                                                {16000, 98},
                                                                                {INT64_MAX, 57646075230342347}})
    EXPECT_EQ(fbank.frames(samples), frames) << samples;
  EXPECT_EQ((FbankSpec{44100, 80, 25, 10}).frame_length(), 1102);
  EXPECT_EQ((FbankSpec{22050, 80, 25, 12.5}).frame_shift(), 275);
}

// Bitwise, at any alignment, whatever came before in the same thread.
TEST(Fbank, FrameDependsOnItsSamplesAlone) {
  const FbankSpec spec{16000, 80, 25, 10}, other{8000, 23, 64, 32};
  const Fbank fbank(spec), larger(other);
  const std::vector<float> samples = noise(16000);
  const Rows whole = frames_of(fbank, samples, spec.bins);
  std::vector<float> copy(401);
  Rows one(80);
  for (int64_t j = 0; j < fbank.frames(16000); ++j) {
    float* moved = copy.data() + j % 2;
    std::copy_n(samples.data() + j * 160, 400, moved);
    if (j % 7 == 0) frames_of(larger, noise(2000, static_cast<uint32_t>(j)), other.bins);
    fbank.apply(moved, 1, one.data());
    ASSERT_TRUE(std::equal(one.begin(), one.end(), whole.begin() + j * 80)) << "frame " << j;
  }
}

TEST(Fbank, ThreadsDoNotMeet) {
  const FbankSpec spec;
  const Fbank fbank(spec);
  std::vector<Rows> made(4);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) made[t] = frames_of(fbank, noise(8000, t), spec.bins);
    });
  for (std::thread& t : threads) t.join();
  for (uint32_t t = 0; t < 4; ++t) EXPECT_EQ(made[t], frames_of(fbank, noise(8000, t), spec.bins));
}

TEST(Fbank, AllocatesNothingAfterTheFirstFrame) {
  const Fbank fbank(FbankSpec{});
  const std::vector<float> samples = noise(16000);
  Rows out(98 * 80);
  fbank.apply(samples.data(), 1, out.data());
  const int64_t before = allocations;
  fbank.apply(samples.data(), 98, out.data());
  for (int i = 0; i < 50; ++i) fbank.apply(samples.data() + i, 1, out.data());
  EXPECT_EQ(allocations - before, 0);
  const Rows counted(out);
  EXPECT_GT(allocations, before) << "the counter sees this program's allocations";
}

TEST(Fbank, SilenceIsTheFloor) {
  const FbankSpec spec;
  for (const float level : {0.0f, 0.25f, -0.7f})
    for (const float x : frames_of(Fbank(spec), std::vector<float>(1000, level), spec.bins))
      EXPECT_EQ(x, std::log(std::numeric_limits<float>::epsilon())) << level;
}

TEST(Fbank, NothingIsWrittenForNoFrames) {
  const Fbank fbank(FbankSpec{});
  fbank.apply(nullptr, 0, nullptr);
  fbank.apply(nullptr, -3, nullptr);
}

TEST(Fbank, RefusesWhatCannotWork) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<FbankSpec, const char*>> bad = {{{999, 80, 25, 10}, "sample_rate is 999"},
                                                              {{384001, 80, 25, 10}, "1000 to 384000"},
                                                              {{INT32_MIN, 80, 25, 10}, "sample_rate"},
                                                              {{16000, 0, 25, 10}, "bins is 0"},
                                                              {{16000, 513, 25, 10}, "1 to 512"},
                                                              {{16000, 80, 0, 0}, "window_ms is 0"},
                                                              {{16000, 80, 1001, 10}, "at most 1000"},
                                                              {{16000, 80, nan, 10}, "window_ms is nan"},
                                                              {{16000, 80, inf, 10}, "window_ms is inf"},
                                                              {{16000, 80, 25, nan}, "shift_ms is nan"},
                                                              {{16000, 80, 25, 25.1}, "at most window_ms, 25"},
                                                              {{16000, 80, 25, -10}, "shift_ms is -10"},
                                                              {{16000, 80, 0.1, 0.1}, "two samples"},
                                                              {{16000, 80, 25, 0.06}, "one sample"},
                                                              {{16000, 200, 25, 10}, "bins 200 are too many"},
                                                              {{16000, 1, 0.125, 0.125}, "bin 1 would be empty"},
                                                              {{1000, 80, 25, 10}, "fewer bins or a longer window"}};
  for (const auto& [spec, part] : bad) {
    try {
      const Fbank made(spec);
      ADD_FAILURE() << part;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ATTN_INVALID);
      EXPECT_THAT(e.what(), testing::HasSubstr(part));
    }
  }
}

TEST(Fbank, TakesTheBounds) {
  for (const FbankSpec& spec :
       {FbankSpec{384000, 512, 1000, 1000}, FbankSpec{1000, 1, 4, 1}, FbankSpec{48000, 512, 1000, 10}}) {
    const Fbank fbank(spec);
    const Rows made = frames_of(fbank, noise(static_cast<size_t>(spec.frame_length() + spec.frame_shift())), spec.bins);
    EXPECT_EQ(made.size(), static_cast<size_t>(2 * spec.bins));
    for (const float x : made) EXPECT_TRUE(std::isfinite(x));
  }
}

}  // namespace
}  // namespace attnkit::core
