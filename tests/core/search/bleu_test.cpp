#include "core/search/bleu.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace attnkit::core::search {
namespace {

// Written by golden/bleu.py with sacreBLEU 2.6.0.
nlohmann::json golden() {
  std::ifstream file(ATTNKIT_SOURCE_DIR "/tests/core/search/golden/bleu.json");
  return nlohmann::json::parse(file);
}

BleuStats stats_of(const nlohmann::json& golden_case) {
  BleuStats corpus;
  for (size_t i = 0; i < golden_case["hypotheses"].size(); ++i)
    corpus +=
        bleu_stats(golden_case["hypotheses"][i].get<std::string>(), golden_case["references"][i].get<std::string>());
  return corpus;
}

using Tokens = std::vector<std::string>;

TEST(Bleu, TokensAreThoseOfSacreBleu) {
  const nlohmann::json all = golden();
  ASSERT_GE(all["cases"].size(), 29u);
  for (const nlohmann::json& c : all["cases"]) {
    SCOPED_TRACE(c["name"]);
    auto texts = c["hypotheses"].get<Tokens>();
    const auto references = c["references"].get<Tokens>();
    texts.insert(texts.end(), references.begin(), references.end());
    ASSERT_EQ(c["tokens"].size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(tokenize_13a(texts[i]), c["tokens"][i].get<Tokens>());
  }
}

TEST(Bleu, ScoresAreThoseOfSacreBleu) {
  const nlohmann::json all = golden();
  ASSERT_GE(all["cases"].size(), 29u);
  for (const nlohmann::json& c : all["cases"]) {
    SCOPED_TRACE(c["name"]);
    const BleuStats corpus = stats_of(c);
    EXPECT_EQ(corpus.matches, (c["matches"].get<std::array<int64_t, 4>>()));
    EXPECT_EQ(corpus.totals, (c["totals"].get<std::array<int64_t, 4>>()));
    EXPECT_EQ(corpus.hypothesis, c["lengths"][0]);
    EXPECT_EQ(corpus.reference, c["lengths"][1]);
    EXPECT_NEAR(bleu(corpus), c["score"].get<double>(), 1e-9);
  }
}

TEST(Bleu, OnlyAsciiMarksAreSplitOff) {
  EXPECT_EQ(tokenize_13a("„ja“ (ja)"), (Tokens{"„ja“", "(", "ja", ")"}));
  EXPECT_EQ(tokenize_13a("猫。犬 it's"), (Tokens{"猫。犬", "it's"}));
}

TEST(Bleu, NothingHasNoScoreAndPerfectionHasAtMost100) {
  EXPECT_EQ(bleu(BleuStats{}), 0);
  EXPECT_LE(bleu(bleu_stats("a b c d e f", "a b c d e f")), 100);
}

TEST(Bleu, BytesThatAreNotUtf8AreLetters) {
  EXPECT_EQ(tokenize_13a("a\xff.b \xc2"), (Tokens{"a\xff", ".", "b", "\xc2"}));
  EXPECT_EQ(tokenize_13a("\xe2\x80"), (Tokens{"\xe2\x80"}));
}

std::vector<BleuStats> pairs_of_unequal_quality(int n) {
  std::vector<BleuStats> pairs;
  const std::string reference = "a b c d e f g h i j k l";
  for (int i = 0; i < n; ++i) {
    std::string hypothesis = reference;
    if (i % 2 == 0) hypothesis[static_cast<size_t>(i % 12) * 2] = 'x';
    if (i % 3 == 0) hypothesis.resize(static_cast<size_t>(9 + i % 11));
    pairs.push_back(bleu_stats(hypothesis, reference));
  }
  return pairs;
}

TEST(Bleu, IntervalHoldsTheScoreAndNarrowsWithMorePairs) {
  const std::vector<BleuStats> few = pairs_of_unequal_quality(12), many = pairs_of_unequal_quality(300);
  BleuStats corpus;
  for (const BleuStats& pair : many) corpus += pair;
  const Interval wide = bleu_interval(few, 500, 1), narrow = bleu_interval(many, 500, 1);
  EXPECT_LT(narrow.low, bleu(corpus));
  EXPECT_GT(narrow.high, bleu(corpus));
  // 25 times the pairs make a fifth of the width, give or take.
  EXPECT_LT((narrow.high - narrow.low) * 3, wide.high - wide.low);
  EXPECT_GT((narrow.high - narrow.low) * 8, wide.high - wide.low);
}

TEST(Bleu, IntervalDependsOnTheSeedAlone) {
  const std::vector<BleuStats> pairs = pairs_of_unequal_quality(40);
  const Interval once = bleu_interval(pairs, 101, 7), again = bleu_interval(pairs, 101, 7);
  EXPECT_EQ(once.low, again.low);
  EXPECT_EQ(once.high, again.high);
  EXPECT_NE(once.low, bleu_interval(pairs, 101, 8).low);
}

TEST(Bleu, IntervalOfEqualPairsOrOfNoneIsAPoint) {
  const std::vector<BleuStats> equal(20, bleu_stats("a b c d x", "a b c d e"));
  const Interval point = bleu_interval(equal, 50, 3);
  EXPECT_NEAR(point.low, bleu(equal[0]), 1e-9);
  EXPECT_NEAR(point.high, bleu(equal[0]), 1e-9);
  EXPECT_EQ(bleu_interval({}, 50, 3).high, 0);
  EXPECT_EQ(bleu_interval(equal, 0, 3).low, bleu_interval(equal, 0, 3).high);
}

}  // namespace
}  // namespace attnkit::core::search
