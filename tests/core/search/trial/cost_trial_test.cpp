#include "core/search/trial/cost_trial.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

using Json = nlohmann::json;

const std::string folder = ATTNKIT_SAMPLE;

std::string placement(const std::string& mechanism) {
  return "schema = \"attnkit.model/1\"\n[model]\nname = \"n\"\nkind = \"encoder-decoder\"\nd_model = 128\nheads = 4\n"
         "ffn = 256\nembed_scale = true\ntie_embeddings = true\nhead_norm = true\nadapters = true\nmax_length = 256\n"
         "encoder = { layers = 3, vocab = \"vocab.txt\", lowercase = true }\n"
         "decoder = { layers = 3, vocab = \"vocab.txt\" }\n[weights]\nfile = \"numbers-en-de.safetensors\"\n"
         "[length]\npredict = \"fixed\"\nlength = 2\n[attention]\ndefault = " +
         mechanism + "\n";
}

const std::string stopping = "{ use = 'cosformer', beyond = 'error' }";

class TrialCost : public testing::Test {
 protected:
  const Runtime runtime_{1, ATTNKIT_PLUGIN_FOLDER};
  const Model model_{runtime_, placement("'relu'"), folder};
  const TaskFacts facts_ = facts_of(model_);
  const DataSet data_{folder + "/dev.tsv", model_, facts_};
  CostTrial trial_{runtime_, folder, data_, facts_};

  Json run(const std::string& mechanism, const std::vector<int64_t>& lengths, size_t real = 0) {
    return trial_.run({placement(mechanism), placement("'softmax'"), lengths, 2, real});
  }
};

std::set<std::string> keys(const Json& object) {
  std::set<std::string> found;
  for (const auto& [key, value] : object.items()) found.insert(key);
  return found;
}

TEST_F(TrialCost, EveryLengthHasItsFigures) {
  const Json result = run("'relu'", {1, 16, 64});
  EXPECT_EQ(keys(result), std::set<std::string>{"at"});
  ASSERT_EQ(result["at"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Json& at = result["at"][i];
    EXPECT_EQ(keys(at),
              (std::set<std::string>{"length", "prefill", "decode", "latency", "latency_p95", "prefill_ratio",
                                     "prefill_repetitions", "decode_ratio", "decode_ratio_low", "decode_ratio_high",
                                     "peak_bytes", "baseline_peak_bytes", "baseline_decode", "baseline_prefill"}));
    EXPECT_EQ(at["length"], (std::vector<int>{1, 16, 64})[i]);
    for (const char* key : {"prefill", "decode", "latency", "prefill_ratio", "decode_ratio_low"})
      EXPECT_GT(at[key].get<double>(), 0) << key;
    EXPECT_LE(at["decode_ratio_low"].get<double>(), at["decode_ratio"].get<double>());
    EXPECT_LE(at["decode_ratio"].get<double>(), at["decode_ratio_high"].get<double>());
    EXPECT_LE(at["latency"].get<double>(), at["latency_p95"].get<double>());
  }
}

TEST_F(TrialCost, PeaksAreOfAFreshModelAndGrowWithLength) {
  std::ofstream allowed("/proc/self/clear_refs");
  allowed << "5" << std::flush;
  if (!allowed) GTEST_SKIP() << "this system does not tell the peak";
  for (int again = 0; again < 2; ++again) {
    const Json at = run("'softmax'", {16, 256})["at"];
    for (const char* key : {"peak_bytes", "baseline_peak_bytes"}) {
      // At least the activations of one feed-forward layer.
      EXPECT_GT(at[0][key].get<int64_t>(), 16 * 256 * 4) << key;
      EXPECT_GT(at[1][key].get<int64_t>(), 2 * at[0][key].get<int64_t>()) << key;
    }
  }
}

TEST_F(TrialCost, RealPairsAreDecodedAsTheyAre) {
  const Json result = run("'relu'", {}, 3);
  EXPECT_TRUE(result["at"].empty());
  EXPECT_EQ(keys(result["real"]), (std::set<std::string>{"decode", "ratio", "ratio_low", "ratio_high"}));
  EXPECT_GT(result["real"]["decode"].get<double>(), 0);
  EXPECT_GT(result["real"]["ratio_low"].get<double>(), 0);
  EXPECT_LE(result["real"]["ratio_low"].get<double>(), result["real"]["ratio"].get<double>());
}

TEST_F(TrialCost, PredictedLengthsDoNotRefuseForcedTokens) {
  const Json result = run(stopping, {32}, 2);
  EXPECT_FALSE(result["at"][0].contains("refused")) << result;
  EXPECT_FALSE(result["real"].contains("refused")) << result;
}

TEST_F(TrialCost, ALengthThatIsRefusedLeavesTheOthers) {
  const Json at = run("'relu'", {16, 257})["at"];
  ASSERT_EQ(at.size(), 2u);
  EXPECT_FALSE(at[0].contains("refused"));
  EXPECT_EQ(keys(at[1]), (std::set<std::string>{"length", "refused"}));
  EXPECT_NE(at[1]["refused"].get<std::string>().find("max_length 256"), std::string::npos);
}

TEST_F(TrialCost, RequestsAndManifestsThatAreWrongAreRefused) {
  const std::string good = placement("'relu'");
  EXPECT_THROW(trial_.run({good, good, {0}, 2, 0}), Failure);
  EXPECT_THROW(trial_.run({good, good, {16}, 0, 0}), Failure);
  EXPECT_THROW(trial_.run({placement("'nothing'"), good, {16}, 1, 0}), Error);
  try {
    trial_.run({good, placement("'nothing'"), {16}, 1, 0});
    FAIL() << "no failure";
  } catch (const Failure& e) {
    EXPECT_EQ(e.fault(), Fault::internal);
    EXPECT_EQ(std::string(e.what()).rfind("the baseline: ", 0), 0u) << e.what();
  }
  EXPECT_EQ(run("'relu'", {16})["at"].size(), 1u);
}

}  // namespace
}  // namespace attnkit::core::search
