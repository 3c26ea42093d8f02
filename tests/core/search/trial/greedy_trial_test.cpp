#include "core/search/trial/greedy_trial.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/search/failure.hpp"
#include "core/search/trial/quality_trial.hpp"

namespace attnkit::core::search {
namespace {

const std::string folder = ATTNKIT_SAMPLE;

// decoder: the value of the decoder's keys.
Model placement(const std::string& decoder, const std::string& length = "predict = \"ratio\"\nalpha = 1.1473\n",
                const std::string& rules = "") {
  static const Runtime runtime(1, ATTNKIT_PLUGIN_FOLDER);
  return Model(runtime,
               "schema = \"attnkit.model/1\"\n[model]\nname = \"n\"\nkind = \"encoder-decoder\"\nd_model = 128\n"
               "heads = 4\nffn = 256\nembed_scale = true\ntie_embeddings = true\nhead_norm = true\nadapters = true\n"
               "encoder = { layers = 3, vocab = \"vocab.txt\", lowercase = true }\n"
               "decoder = { layers = 3, vocab = \"vocab.txt\" }\n[weights]\nfile = \"numbers-en-de.safetensors\"\n"
               "[length]\n" +
                   length + "[attention]\ndefault = \"relu\"\n\"decoder.self\" = " + decoder +
                   "\n\"decoder.cross\" = " + decoder + "\n[decode]\n" + rules,
               folder);
}

void expect_equal_exact(const Model& model, size_t begin, size_t end) {
  const TaskFacts facts = facts_of(model);
  const DataSet data(folder + "/dev.tsv", model, facts);
  const std::vector<int64_t> bounds = {12, 50};
  const Measured told_all = QualityTrial(data, facts, bounds).run(model, "", begin, end);
  const std::vector<QualitySums>& told = told_all.sums;
  const Greedy greedy = decode(model, facts, data, bounds, begin, end);
  ASSERT_EQ(greedy.sums.size(), told.size());
  int64_t tokens = 0;
  for (size_t b = 0; b < told.size(); ++b) {
    EXPECT_EQ(greedy.sums[b].examples, told[b].examples);
    EXPECT_EQ(greedy.sums[b].exact, told[b].exact);
    tokens += told[b].tokens;
  }
  EXPECT_NEAR(static_cast<double>(greedy.tokens) / static_cast<double>(tokens), 1, 0.1);
  EXPECT_GT(greedy.bleu, 50);
  EXPECT_LE(greedy.bleu_interval.low, greedy.bleu);
  EXPECT_GE(greedy.bleu_interval.high, greedy.bleu);
}

TEST(TrialDecode, ExactIsThatOfQuality) {
  expect_equal_exact(placement("'softmax'"), 0, 100);
  expect_equal_exact(placement("'cosformer'"), 100, 150);
}

std::vector<bool> exact_ones(const Outcomes& outcomes) {
  std::vector<bool> exact;
  for (size_t i = 0; i < outcomes.tokens.size(); ++i) exact.push_back(outcomes.right[i] == outcomes.tokens[i]);
  return exact;
}

TEST(TrialDecode, AllListsAreRightOrWrongAsAWholeSequenceSays) {
  for (const char* decoder : {"'relu'", "'leap'"}) {
    const Model model = placement(decoder);
    const TaskFacts facts = facts_of(model);
    const DataSet data(folder + "/dev.tsv", model, facts);
    const Measured measured = QualityTrial(data, facts, {}).run(model, "", 0, 500);
    const Greedy all = decode(model, facts, data, {}, 0, 500);
    EXPECT_EQ(exact_ones(measured.outcomes), exact_ones(all.outcomes)) << decoder;
    EXPECT_LT(measured.decoded, 20);
    // Sure examples are left out, which changes nothing.
    EXPECT_GT(std::ranges::count(measured.sure, true), 470);
    const Greedy rest = decode(model, facts, data, {}, 0, 500, measured.sure);
    EXPECT_EQ(rest.bleu, all.bleu);
    EXPECT_EQ(rest.tokens, all.tokens);
    EXPECT_EQ(exact_ones(rest.outcomes), exact_ones(all.outcomes));
  }
}

TEST(TrialDecode, ListsThatScoresAreTooCloseForAreDecoded) {
  const Model model = placement("'relu'");
  const TaskFacts facts = facts_of(model);
  const DataSet data(folder + "/dev.tsv", model, facts);
  const auto measured = [&](float close) {
    return QualityTrial(data, facts, {}, {32, 600, close}).run(model, "", 0, 300);
  };
  const Measured none = measured(0), all = measured(1e9f);
  EXPECT_EQ(none.decoded, 0);
  EXPECT_EQ(all.decoded, 300);
  EXPECT_EQ(std::ranges::count(all.sure, true), 0);
  EXPECT_EQ(exact_ones(all.outcomes), exact_ones(none.outcomes));
  EXPECT_GT(std::ranges::count(exact_ones(all.outcomes), false), 0);
  EXPECT_EQ(all.sums[0].exact, none.sums[0].exact);
  EXPECT_EQ(all.sums[0].examples, 300);
}

TEST(TrialDecode, ThatWhichDecodeRulesSayIsWritten) {
  for (const char* rule : {"no_repeat = 1", "repetition_penalty = 1.5", "min_length = 12", "suppress = [5, 6, 7, 8, 9]",
                           "suppress_first = [5, 6, 7, 8, 9]", "max_length = 9\nforce_end = true", "limit = 4",
                           "max_length = 6", "forced = [7]\nlimit = 5"}) {
    const Model model = placement("'relu'", "predict = \"ratio\"\nalpha = 1.1473\n", rule);
    const TaskFacts facts = facts_of(model);
    const DataSet data(folder + "/dev.tsv", model, facts);
    const Measured measured = QualityTrial(data, facts, {}).run(model, "", 0, 60);
    std::vector<bool> exact;
    for (size_t i = 0; i < 60; ++i) {
      Session session(model, 1);
      session.read(data[i].source);
      Ids made = session.generate();
      made.erase(made.begin(), made.begin() + static_cast<std::ptrdiff_t>(facts.forced.size()));
      exact.push_back(made == data[i].wanted);
    }
    EXPECT_EQ(exact_ones(measured.outcomes), exact) << rule;
    EXPECT_EQ(exact_ones(decode(model, facts, data, {}, 0, 60, measured.sure).outcomes), exact) << rule;
    EXPECT_TRUE(!facts.has_rules || measured.decoded == 60) << rule;
  }
}

TEST(TrialDecode, AModelThatPredictsNoLengthIsToldThatOfTheReference) {
  expect_equal_exact(placement("'cosformer'", "predict = \"reference\"\n"), 0, 50);
}

TEST(TrialDecode, ARangeWithoutMistakesHasBleu100) {
  const Model model = placement("'softmax'");
  const TaskFacts facts = facts_of(model);
  const DataSet data(folder + "/dev.tsv", model, facts);
  const Greedy greedy = decode(model, facts, data, {}, 0, 10);
  ASSERT_EQ(greedy.sums[0].exact, 10);
  EXPECT_NEAR(greedy.bleu, 100, 1e-9);
  EXPECT_NEAR(greedy.bleu_interval.low, 100, 1e-9);
  EXPECT_EQ(decode(model, facts, data, {}, 5, 5).tokens, 0);
}

TEST(TrialDecode, RefusalsNameWhatIsWrong) {
  const Model model = placement("'softmax'");
  TaskFacts facts = facts_of(model);
  const DataSet data(folder + "/dev.tsv", model, facts);
  EXPECT_THROW(decode(model, facts, data, {}, 0, 2001), Failure);
  EXPECT_THROW(decode(model, facts, data, {}, 3, 2), Failure);
  facts.task = Task::labelling;
  EXPECT_THROW(decode(model, facts, data, {}, 0, 1), Failure);
}

TEST(TrialDecode, AMechanismThatStopsAtThePredictedLengthIsBlamedByList) {
  const Model model = placement("{ use = 'cosformer', beyond = 'error' }", "predict = \"fixed\"\nlength = 3\n");
  const TaskFacts facts = facts_of(model);
  const DataSet data(folder + "/dev.tsv", model, facts);
  try {
    decode(model, facts, data, {}, 0, 5);
    FAIL() << "no refusal";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ATTN_UNSUPPORTED);
    EXPECT_NE(std::string(e.what()).find("dev.tsv:"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace attnkit::core::search
