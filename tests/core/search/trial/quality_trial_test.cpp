#include "core/search/trial/quality_trial.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

const std::string folder = ATTNKIT_SAMPLE;

const Runtime& runtime() {
  static const Runtime made(1, ATTNKIT_PLUGIN_FOLDER);
  return made;
}

Model placement(const std::string& encoder, const std::string& decoder) {
  return Model(
      runtime(),
      "schema = \"attnkit.model/1\"\n[model]\nname = \"n\"\nkind = \"encoder-decoder\"\nd_model = 128\n"
      "heads = 4\nffn = 256\nembed_scale = true\ntie_embeddings = true\nhead_norm = true\nadapters = true\n"
      "encoder = { layers = 3, vocab = \"vocab.txt\", lowercase = true }\n"
      "decoder = { layers = 3, vocab = \"vocab.txt\" }\n[weights]\nfile = \"numbers-en-de.safetensors\"\n"
      "[length]\npredict = \"ratio\"\nalpha = 1.1473\n[attention]\ndefault = \"softmax\"\n\"encoder.self\" = \"" +
          encoder + "\"\n\"decoder.self\" = \"" + decoder + "\"\n",
      folder);
}

const Model& first() {
  static const Model model = placement("relu", "cosformer");
  return model;
}

const TaskFacts& facts() {
  static const TaskFacts made = facts_of(first());
  return made;
}

const DataSet& data() {
  static const DataSet made(folder + "/dev.tsv", first(), facts());
  return made;
}

// One list at a time, in double, without any of the shortcuts.
QualitySums plainly(const Model& model, size_t begin, size_t end) {
  QualitySums sums;
  const auto width = static_cast<size_t>(facts().info.outputs);
  for (size_t i = begin; i < end; ++i) {
    const Ids &source = data()[i].source, &target = data()[i].target, &wanted = data()[i].wanted;
    std::vector<float> scores(target.size() * width);
    model.forward(Batch({&source, 1}), Batch({&target, 1}),
                  tensor(scores.data(), {1, static_cast<int64_t>(target.size()), facts().info.outputs}));
    double nll = 0;
    int64_t right = 0;
    for (size_t t = 0; t < wanted.size(); ++t) {
      const float* row = scores.data() + t * width;
      double sum = 0;
      size_t best = 0;
      for (size_t j = 0; j < width; ++j) {
        sum += std::exp(static_cast<double>(row[j]));
        if (row[j] > row[best]) best = j;
      }
      nll += std::log(sum) - static_cast<double>(row[wanted[t]]);
      right += best == static_cast<size_t>(wanted[t]);
    }
    const auto tokens = static_cast<int64_t>(wanted.size());
    sums += sums_of_example(right == tokens, tokens, right, nll);
  }
  return sums;
}

QualitySums total(const std::vector<QualitySums>& buckets) {
  QualitySums sum;
  for (const QualitySums& b : buckets) sum += b;
  return sum;
}

void expect_same(const QualitySums& a, const QualitySums& b) {
  EXPECT_EQ(a.examples, b.examples);
  EXPECT_EQ(a.exact, b.exact);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.right, b.right);
  EXPECT_NEAR(a.nll, b.nll, 1e-6 * std::max(1.0, a.nll));
  EXPECT_NEAR(a.nll_squared, b.nll_squared, 1e-6 * std::max(1.0, a.nll_squared));
  EXPECT_NEAR(a.nll_tokens, b.nll_tokens, 1e-6 * std::max(1.0, a.nll_tokens));
}

TEST(TrialQuality, EqualsAnIndependentComputation) {
  const QualitySums plain = plainly(first(), 0, 100);
  EXPECT_EQ(plain.examples, 100);
  QualityTrial trial(data(), facts(), {12, 25, 50, 75});
  expect_same(total(trial.run(first(), "relu", 0, 100).sums), plain);
  QualityTrial one_by_one(data(), facts(), {}, {1, 1});
  const Measured alone = one_by_one.run(first(), "", 0, 100);
  expect_same(total(alone.sums), plain);
  for (size_t i = 0; i < 100; ++i) {
    expect_same(plainly(first(), i, i + 1), [&] {
      const Outcomes& o = alone.outcomes;
      return sums_of_example(o.right[i] == o.tokens[i], o.tokens[i], o.right[i], static_cast<double>(o.nll[i]));
    }());
  }
}

TEST(TrialQuality, RangesAddUpBucketByBucket) {
  QualityTrial trial(data(), facts(), {12, 50});
  Measured part = trial.run(first(), "", 0, 37);
  const Measured remainder = trial.run(first(), "", 37, 100), all = trial.run(first(), "", 0, 100);
  std::vector<QualitySums>& parts = part.sums;
  const std::vector<QualitySums>&rest = remainder.sums, &whole = all.sums;
  ASSERT_EQ(whole.size(), 3u);
  for (size_t b = 0; b < whole.size(); ++b) {
    EXPECT_GT(whole[b].examples, 0);
    expect_same(parts[b] += rest[b], whole[b]);
  }
  Outcomes joined;
  joined.put(37, remainder.outcomes);  // in any order
  joined.put(0, part.outcomes);
  EXPECT_EQ(joined.tokens, all.outcomes.tokens);
  EXPECT_EQ(joined.right, all.outcomes.right);
  EXPECT_EQ(total(trial.run(first(), "", 50, 50).sums).examples, 0);
}

TEST(TrialQuality, KeptEncodersGiveTheSameSums) {
  const Model second = placement("relu", "softmax"), third = placement("softmax", "softmax");
  QualityTrial kept(data(), facts(), {}), fresh(data(), facts(), {});
  kept.run(first(), "relu", 0, 60);
  EXPECT_EQ(kept.run(second, "relu", 0, 60).sums, fresh.run(second, "", 0, 60).sums);
  EXPECT_EQ(kept.run(second, "relu", 0, 60).sums, fresh.run(second, "", 0, 60).sums);
  EXPECT_EQ(kept.run(third, "softmax", 0, 60).sums, fresh.run(third, "", 0, 60).sums);
  EXPECT_EQ(kept.run(second, "relu", 0, 60).sums, fresh.run(second, "", 0, 60).sums);
}

TEST(TrialQuality, RangesOutsideTheDataAreRefused) {
  QualityTrial trial(data(), facts(), {});
  EXPECT_THROW(trial.run(first(), "", 0, 2001), Failure);
  EXPECT_THROW(trial.run(first(), "", 2, 1), Failure);
}

TEST(ScoreExample, EqualsDoubleAtEveryWidth) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  for (int64_t width : {2, 3, 15, 16, 17, 31, 178, 1024, 1040, 2049, 50000}) {
    std::vector<float> scores(static_cast<size_t>(width));
    for (float& s : scores) s = normal(random);
    const auto best = static_cast<int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
    double sum = 0;
    for (float s : scores) sum += std::exp(static_cast<double>(s));
    for (int32_t wanted : {best, static_cast<int32_t>(width - 1), 0}) {
      const ExampleScore score = score_example(scores.data(), width, {wanted});
      const double nll = std::log(sum) - static_cast<double>(scores[static_cast<size_t>(wanted)]);
      EXPECT_NEAR(score.nll, nll, 5e-7 * std::max(1.0, nll)) << width;
      EXPECT_EQ(score.right, wanted == best ? 1 : 0) << width;
    }
  }
}

TEST(ScoreExample, MarginIsTheLeastLeadOrTheLargestLag) {
  // Three positions of 40 scores; the highest two stand in the same lane, in other lanes, in the last lanes.
  std::vector<float> scores(3 * 40, -1.0f);
  const auto set = [&](size_t position, size_t id, float score) { scores[position * 40 + id] = score; };
  set(0, 3, 5), set(0, 19, 2);
  set(1, 20, 4), set(1, 6, 2.5f);
  set(2, 38, 9), set(2, 39, 1);
  EXPECT_FLOAT_EQ(score_example(scores.data(), 40, {3, 20, 38}).margin, 1.5f);
  EXPECT_FLOAT_EQ(score_example(scores.data(), 40, {19, 20, 39}).margin, 8);
  set(1, 6, 4);
  EXPECT_EQ(score_example(scores.data(), 40, {3, 6, 38}).margin, 0);   // the first of equals
  EXPECT_EQ(score_example(scores.data(), 40, {3, 20, 38}).margin, 0);  // the second
  set(0, 19, 5);
  EXPECT_EQ(score_example(scores.data(), 40, {3}).margin, 0);
}

TEST(ScoreExample, TheLowestOfEqualScoresIsChosen) {
  std::vector<float> scores(40, -1.0f);
  scores[7] = scores[30] = 2.0f;
  EXPECT_EQ(score_example(scores.data(), 40, {7}).right, 1);
  EXPECT_EQ(score_example(scores.data(), 40, {30}).right, 0);
}

TEST(ScoreExample, LargeScoresDoNotOverflowAndNanIsSeenAnywhere) {
  const std::vector<float> large = {3e38f, 0.0f, -3e38f};
  EXPECT_NEAR(score_example(large.data(), 3, {0}).nll, 0, 1e-12);
  EXPECT_NEAR(score_example(large.data(), 3, {1}).nll / 3e38, 1, 1e-6);
  for (size_t at : {0, 15, 16, 20}) {
    std::vector<float> scores(21, 1.0f);
    scores[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(score_example(scores.data(), 21, {3}).nll)) << at;
  }
}

}  // namespace
}  // namespace attnkit::core::search
