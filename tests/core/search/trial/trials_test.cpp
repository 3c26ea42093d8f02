#include "core/search/trial/trials.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <sstream>

#include "core/search/failure.hpp"
#include "tests/abi/temp_folder.hpp"

namespace attnkit::core::search {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

const std::string sample = ATTNKIT_SAMPLE;

std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string toml() { return read_file(sample + "/model.toml"); }

Json open_request(const TempFolder& folder) {
  folder.write("data.tsv",
               "the third\tder dritte\nthe seventeenth\tder siebzehnte\nfive hundred and seven\tfünfhundertsieben\n");
  folder.write("test.tsv", "the seventeenth\tder siebzehnte\n");
  return {{"id", 1},
          {"kind", "open"},
          {"dir", sample},
          {"toml", toml()},
          {"threads", 1},
          {"plugin_path", ATTNKIT_PLUGIN_FOLDER},
          {"data", folder.path() + "/data.tsv"},
          {"test", folder.path() + "/test.tsv"}};
}

class TrialsTest : public testing::Test {
 protected:
  const TempFolder folder_;
  Trials trials_{open_request(folder_)};

  Json result(const Json& request) {
    const Json reply = trials_.answer(request);
    EXPECT_EQ(reply["id"], request["id"]);
    EXPECT_TRUE(reply["ok"].get<bool>()) << reply;
    return reply.value("result", Json::object());
  }
  Json error(const Json& request) {
    const Json reply = trials_.answer(request);
    EXPECT_FALSE(reply["ok"].get<bool>()) << reply;
    EXPECT_FALSE(reply.contains("result"));
    return reply.value("error", Json::object());
  }
};

TEST_F(TrialsTest, OpenedTellsTheLists) {
  const Json opened = trials_.opened();
  EXPECT_EQ(opened["lists"], (Json{{"data", 3}, {"test", 1}}));
  EXPECT_EQ(opened["kind"], "encoder-decoder");
  EXPECT_EQ(opened["buckets"].size(), 1u) << "two inputs are equally long";
}

TEST_F(TrialsTest, DescribeGivesTheDescriptionAndWarnings) {
  const Json described = result({{"id", "a"}, {"kind", "describe"}, {"toml", toml()}, {"lengths", {64, 4096}}});
  EXPECT_EQ(described["description"]["schema"], "attnkit.model-description/1");
  EXPECT_EQ(described["description"]["blocks"][0]["costs"].size(), 2u);
  EXPECT_TRUE(described["warnings"].is_array());
}

TEST_F(TrialsTest, QualityAndDecodeGiveSumsByBucket) {
  const Json quality =
      result({{"id", 1}, {"kind", "quality"}, {"toml", toml()}, {"encoder", "e"}, {"begin", 0}, {"end", 3}});
  ASSERT_EQ(quality["sums"].size(), 2u);
  int lists = 0, exact = 0;
  for (const Json& sums : quality["sums"]) {
    lists += sums["lists"].get<int>();
    exact += sums["exact"].get<int>();
  }
  EXPECT_EQ(lists, 3);
  EXPECT_EQ(exact, 3);
  const Json greedy =
      result({{"id", 2}, {"kind", "decode"}, {"toml", toml()}, {"split", "test"}, {"begin", 0}, {"end", 1}});
  ASSERT_EQ(greedy["sums"].size(), 2u);
  EXPECT_GT(greedy["tokens"].get<int>(), 1);
  for (const char* key : {"bleu", "bleu_low", "bleu_high", "tokens"}) EXPECT_TRUE(greedy[key].is_number()) << key;
}

TEST_F(TrialsTest, CostComparesWithTheBaseline) {
  const Json cost = result({{"id", 1},
                            {"kind", "cost"},
                            {"toml", toml()},
                            {"baseline", toml()},
                            {"lengths", {8}},
                            {"repetitions", 1},
                            {"real", 2}});
  EXPECT_EQ(cost["at"][0]["length"], 8);
  EXPECT_GT(cost["real"]["decode"].get<double>(), 0);
}

TEST_F(TrialsTest, ManifestsThatAreWrongAreRefusedWithTheirDiagnostics) {
  std::string wrong = toml();
  wrong.replace(wrong.find("\"leap\""), 6, "\"laep\"");
  for (const char* kind : {"quality", "describe", "decode", "cost"}) {
    const Json e = error({{"id", 1},
                          {"kind", kind},
                          {"toml", wrong},
                          {"baseline", toml()},
                          {"lengths", {8}},
                          {"split", "data"},
                          {"begin", 0},
                          {"end", 1}});
    EXPECT_EQ(e["kind"], "refused") << kind;
    EXPECT_THAT(e["message"].get<std::string>(), HasSubstr("laep")) << kind;
  }
}

TEST_F(TrialsTest, RequestsThatAreWrongAreInternal) {
  EXPECT_EQ(error({{"id", 1}, {"kind", "nothing"}})["kind"], "internal");
  EXPECT_EQ(error({{"id", 1}})["kind"], "internal");
  EXPECT_EQ(error({{"id", 1}, {"kind", "quality"}})["kind"], "internal");
  EXPECT_EQ(error({{"id", 1}, {"kind", 3}})["kind"], "internal");
  EXPECT_EQ(error({{"id", 1}, {"kind", "quality"}, {"toml", toml()}, {"begin", 0}, {"end", 4}})["kind"], "internal");
  EXPECT_EQ(error({{"id", 1}, {"kind", "decode"}, {"toml", toml()}, {"split", "x"}, {"begin", 0}, {"end", 1}})["kind"],
            "internal");
  EXPECT_FALSE(trials_.answer(Json::array())["ok"].get<bool>());
}

// The sample with NaN in place of the decoder's last weights.
void break_weights(const TempFolder& folder) {
  std::string weights = read_file(sample + "/numbers-en-de.safetensors");
  uint64_t size = 0;
  std::memcpy(&size, weights.data(), sizeof size);
  const Json header = Json::parse(weights.substr(8, size));
  const uint64_t begin = 8 + size + header["decoder.norm.bias"]["data_offsets"][0].get<uint64_t>();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(weights.data() + begin, &nan, sizeof nan);
  folder.write("numbers-en-de.safetensors", weights);
  folder.write("vocab.txt", read_file(sample + "/vocab.txt"));
}

TEST(Trials, ScoresThatAreNotNumbersNameTheList) {
  const TempFolder folder;
  break_weights(folder);
  Json open = open_request(folder);
  std::string broken = toml();
  const size_t sum = broken.find("sha256");
  broken.erase(sum, broken.find('\n', sum) - sum);
  open["dir"] = folder.path();
  open["toml"] = broken;
  Trials trials(open);
  for (const char* kind : {"quality", "decode"}) {
    const Json reply = trials.answer(
        {{"id", 1}, {"kind", kind}, {"toml", broken}, {"split", "data"}, {"encoder", ""}, {"begin", 0}, {"end", 2}});
    ASSERT_FALSE(reply["ok"].get<bool>()) << reply;
    EXPECT_EQ(reply["error"]["kind"], "numerical") << reply;
    EXPECT_THAT(reply["error"]["message"].get<std::string>(), HasSubstr("data.tsv:"));
  }
}

TEST(Trials, OpeningFailsWithAReply) {
  const TempFolder folder;
  const Json good = open_request(folder);
  const auto kind_of = [&](const char* key, const Json& value) {
    Json open = good;
    open[key] = value;
    const Json reply = reply_to(open, [&] { return Trials(open).opened(); });
    EXPECT_FALSE(reply["ok"].get<bool>()) << reply;
    return reply["ok"] ? "" : reply["error"]["kind"].get<std::string>();
  };
  EXPECT_EQ(kind_of("data", folder.path() + "/none.tsv"), "data");
  EXPECT_EQ(kind_of("test", folder.path() + "/none.tsv"), "data");
  EXPECT_EQ(kind_of("toml", "schema = 3"), "refused");
  EXPECT_EQ(kind_of("dir", 3), "internal");
  Json shorter = good;
  for (const char* key : {"test", "threads"}) shorter.erase(key);
  EXPECT_EQ(Trials(shorter).opened()["lists"]["test"], 0);
}

// The manifest of a model of one layer with the vocabulary <s>, </s>, a, b, whose weights are written to the folder.
// stack: "encoder" or "decoder"; classes 0: it scores the vocabulary; -1: it gives out vectors.
std::string write_tiny(const TempFolder& folder, const std::string& stack, int classes) {
  constexpr int d = 8;
  std::vector<std::pair<std::string, std::vector<int>>> tensors = {{stack + ".embed.weight", {4, d}}};
  for (const char* part : {".norm", ".self.1.norm", ".ffn.1.norm"})
    for (const char* end : {".weight", ".bias"}) tensors.push_back({stack + part + end, {d}});
  for (const char* part : {".self.1.q", ".self.1.k", ".self.1.v", ".self.1.o", ".ffn.1.in", ".ffn.1.out"}) {
    tensors.push_back({stack + part + ".weight", {d, d}});
    tensors.push_back({stack + part + ".bias", {d}});
  }
  if (classes > 0) tensors.push_back({"head.bias", {classes}});
  if (classes >= 0) tensors.push_back({"head.weight", {classes > 0 ? classes : 4, d}});
  Json header;
  std::vector<float> data;
  for (const auto& [name, shape] : tensors) {
    const size_t begin = data.size() * 4;
    for (int i = 0; i < shape[0] * (shape.size() > 1 ? shape[1] : 1); ++i)
      data.push_back(std::sin(static_cast<float>(data.size())));
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size() * 4}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  folder.write("w.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + text +
                                    std::string(reinterpret_cast<const char*>(data.data()), data.size() * 4));
  folder.write("vocab.txt", "<s>\n</s>\n\u2581a\n\u2581b\n");
  return "schema = \"attnkit.model/1\"\n[model]\nname = \"tiny\"\nkind = \"" + stack +
         "\"\nd_model = 8\nheads = 2\nffn = 8\nmax_length = 64\n" + stack +
         " = { layers = 1, vocab = \"vocab.txt\" }\n" +
         (classes > 0 ? "head = { type = \"classifier\", classes = " + std::to_string(classes) + " }\n" : "") +
         (classes < 0 ? "head = { type = \"embedding\" }\n" : "") +
         "[weights]\nfile = \"w.safetensors\"\n[attention]\ndefault = \"softmax\"\n";
}

// Opens a worker for it and asks for quality, cost and decoding.
void expect_works(const std::string& stack, int classes, const std::string& data, int tokens) {
  const TempFolder folder;
  const std::string manifest = write_tiny(folder, stack, classes);
  folder.write("data.txt", data);
  Trials trials({{"dir", folder.path()},
                 {"toml", manifest},
                 {"plugin_path", ATTNKIT_PLUGIN_FOLDER},
                 {"data", folder.path() + "/data.txt"}});
  EXPECT_EQ(trials.opened()["kind"], stack);
  const Json quality = trials.answer({{"kind", "quality"}, {"toml", manifest}, {"begin", 0}, {"end", 2}});
  ASSERT_TRUE(quality["ok"].get<bool>()) << quality;
  QualitySums total;
  for (const Json& bucket : quality["result"]["sums"]) total += bucket.get<QualitySums>();
  EXPECT_EQ(total.examples, 2);
  EXPECT_EQ(total.tokens, tokens);
  EXPECT_GT(total.nll, 0);
  const Json cost = trials.answer({{"kind", "cost"},
                                   {"toml", manifest},
                                   {"baseline", manifest},
                                   {"lengths", {32}},
                                   {"repetitions", 1},
                                   {"real", 2}});
  ASSERT_TRUE(cost["ok"].get<bool>()) << cost;
  EXPECT_GT(cost["result"]["at"][0]["prefill"].get<double>(), 0);
  EXPECT_EQ(cost["result"]["at"][0].contains("decode"), stack == "decoder");
  EXPECT_EQ(cost["result"].contains("real"), stack == "decoder");
  const Json greedy =
      trials.answer({{"kind", "decode"}, {"toml", manifest}, {"split", "data"}, {"begin", 0}, {"end", 1}});
  EXPECT_EQ(greedy["error"]["kind"], "refused") << greedy;
}

TEST(Trials, OtherKindsOfModelsAreTriedToo) {
  expect_works("decoder", 0, "a b a\nb b\n", 4 + 3);
  expect_works("encoder", 0, "a b a\nb b\n", 4 + 3);
  expect_works("encoder", 3, "a b a\t2\nb b\t0\n", 1 + 1);
}

TEST(Trials, VectorsToCompareWithAreMadeOfTheExamplesThatAreAskedFor) {
  const TempFolder folder;
  const std::string manifest = write_tiny(folder, "encoder", -1);
  folder.write("data.txt", "a b a\nb b\nb a\na a b\n");
  const Runtime runtime(1, ATTNKIT_PLUGIN_FOLDER);
  const Model model(runtime, manifest, folder.path());
  const TaskFacts facts = facts_of(model);
  const DataSet data(folder.path() + "/data.txt", model, facts);
  QualityTrial trial(data, facts, {});
  trial.compare_with(model, 0, 2);
  EXPECT_FALSE(trial.lacks_vectors(0, 2));
  EXPECT_TRUE(trial.lacks_vectors(0, 4));
  EXPECT_TRUE(trial.lacks_vectors(2, 3));
  EXPECT_THROW(trial.compare_with(model, 2, 5), Failure);
  Trials trials({{"dir", folder.path()},
                 {"toml", manifest},
                 {"plugin_path", ATTNKIT_PLUGIN_FOLDER},
                 {"data", folder.path() + "/data.txt"}});
  for (const auto& [begin, end] : {std::pair(2, 4), std::pair(0, 2)}) {
    const Json reply = trials.answer({{"kind", "quality"}, {"toml", manifest}, {"begin", begin}, {"end", end}});
    ASSERT_TRUE(reply["ok"].get<bool>()) << reply;
    for (const float loss : reply["result"]["outcomes"]["nll"]) EXPECT_NEAR(loss, 0, 1e-6);
  }
}

TEST(Trials, RepliesTellEveryKindOfError) {
  const auto kind_of = [](const auto& thrown) -> std::string {
    const Json reply = reply_to({{"id", 1}}, [&]() -> Json { throw thrown; });
    return reply["error"]["kind"];
  };
  EXPECT_EQ(kind_of(Failure(Fault::data, "x")), "data");
  EXPECT_EQ(kind_of(Failure(Fault::manifest, "x")), "refused");
  EXPECT_EQ(kind_of(Error(ATTN_UNSUPPORTED, "x")), "refused");
  EXPECT_EQ(kind_of(Error(ATTN_INVALID, "x", -1, {Diagnostic{}})), "refused");
  EXPECT_EQ(kind_of(Error(ATTN_INVALID, "x")), "internal");
  EXPECT_EQ(kind_of(Error(ATTN_INTERNAL, "x")), "numerical");
  EXPECT_EQ(kind_of(std::runtime_error("x")), "internal");
  EXPECT_EQ(kind_of(Error(ATTN_NO_MEMORY, "x")), "memory");
  EXPECT_EQ(kind_of(std::bad_alloc()), "memory");
}

}  // namespace
}  // namespace attnkit::core::search
