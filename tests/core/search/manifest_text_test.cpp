#include "core/search/manifest_text.hpp"

#include <gmock/gmock.h>

#include <attnkit/attnkit.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* sample = ATTNKIT_SAMPLE "/model.toml";

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The sample's blocks with choices written in both ways.
Space sample_space() {
  Space space;
  for (uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS})
    for (int layer : {1, 2, 3}) space.blocks.push_back({role, layer});
  space.choices = {{"softmax", "\"softmax\""}, {"relu", "\"relu\""}, {"leap", "{ use = \"leap\", factor = 4 }"}};
  space.allowed.assign(9, {0, 1, 2});
  space.baseline.assign(9, 0);
  return space;
}

// role.layer=mechanism of every block, as the library understands the text.
std::vector<std::string> grid_of(const std::string& toml, const std::string& folder = ATTNKIT_SAMPLE) {
  const Runtime runtime(1, ATTNKIT_PLUGIN_FOLDER);
  const Model model(runtime, toml, folder);
  std::vector<std::string> grid;
  const std::string description = model.describe();
  for (size_t at = 0; (at = description.find("\"block\":\"", at)) != std::string::npos; ++at) {
    const auto value = [&](const std::string& key) {
      const size_t begin = description.find(key, at) + key.size();
      return description.substr(begin, description.find('"', begin) - begin);
    };
    grid.push_back(value("\"block\":\"") + "=" + value("\"mechanism\":\""));
  }
  std::sort(grid.begin(), grid.end());
  return grid;
}

TEST(ManifestEdit, ThePlacementIsWhatTheLibraryUnderstands) {
  const ManifestText manifest(text_of(sample));
  const Placement placement = {0, 0, 0, 2, 1, 2, 1, 1, 0};
  EXPECT_THAT(grid_of(manifest.with(sample_space(), placement)),
              testing::ElementsAre("decoder.cross.1=relu", "decoder.cross.2=relu", "decoder.cross.3=softmax",
                                   "decoder.self.1=leap", "decoder.self.2=relu", "decoder.self.3=leap",
                                   "encoder.self.1=softmax", "encoder.self.2=softmax", "encoder.self.3=softmax"));
}

TEST(ManifestEdit, ParamsStayAndEarlierDecisionsGo) {
  const ManifestText manifest(text_of(sample) + "[[attention.override]]\nblock = \"decoder.self\"\nuse = \"relu\"\n");
  const std::string text = manifest.with(sample_space(), Placement(9, 0));
  EXPECT_THAT(text, HasSubstr("guard = "));
  EXPECT_THAT(text, Not(HasSubstr("override")));
  EXPECT_THAT(text, Not(HasSubstr("default = \"softmax\"")));
}

TEST(ManifestEdit, KeysKeepTheirQuotesWhereTheyNeedThem) {
  const ManifestText manifest(text_of(sample) +
                              "[other]\n\"a key\" = 1\nplain-1_ = 2\n\"\" = 3\n\"a.b\" = { 'c.d' = 4 }\n");
  const std::string text = manifest.with(sample_space(), Placement(9, 0));
  for (const char* part : {"\n\"a key\" = 1\n", "\nplain-1_ = 2\n", "\n\"\" = 3\n", "\"a.b\"", "\"c.d\" = 4"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(ManifestEdit, ATableWithoutKeysStays) {
  const ManifestText manifest(text_of(sample) + "\n[stream]\n");
  const Space space = sample_space();
  const Placement all(9, 1);
  for (const std::string& text : {manifest.with(space, all), manifest.deployed(space, all, "/m", "/m", ""),
                                  manifest.bundled(space, all, {{"weights.file", "w"}}, "12ab", "")}) {
    EXPECT_THAT(text, HasSubstr("\n[stream]\n"));
    EXPECT_THAT(text, Not(HasSubstr("search")));
  }
}

TEST(ManifestEdit, MaxLengthOnlyGrows) {
  const ManifestText manifest(text_of(sample));
  EXPECT_THAT(manifest.with(sample_space(), Placement(9, 0), 4096), HasSubstr("max_length = 4096"));
  EXPECT_THAT(manifest.with(sample_space(), Placement(9, 0), 64), HasSubstr("max_length = 512"));
}

TEST(ManifestEdit, TheDeployedOneOpensFromItsNewFolder) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "deployed";
  std::filesystem::create_directories(folder);
  const ManifestText manifest(text_of(sample));
  const std::string text = manifest.deployed(sample_space(), Placement(9, 1), ATTNKIT_SAMPLE, folder.string(),
                                             "made by a test\n\nof two lines");
  EXPECT_THAT(text, testing::StartsWith("# made by a test\n#\n# of two lines\n"));
  EXPECT_EQ(grid_of(text, folder.string()).front(), "decoder.cross.1=relu");
}

TEST(ManifestEdit, TheDeployedOneNamesOnlyWhatItUses) {
  const ManifestText manifest(text_of(sample));
  const std::string text = manifest.deployed(sample_space(), {0, 0, 2, 0, 0, 0, 0, 0, 0}, ATTNKIT_SAMPLE, "/", "");
  EXPECT_THAT(text, HasSubstr("\nparams.leap = { factor = 4, guard = \"clamp\", eps = 0.1 }\n"));  // as it was written
  for (const char* gone : {"params.relu", "cosformer", "search", "dev.tsv", "default"})
    EXPECT_THAT(text, Not(HasSubstr(gone)));
  for (const char* kept : {"adapters = true", "[length]", "sha256 = "}) EXPECT_THAT(text, HasSubstr(kept));
  EXPECT_THAT(manifest.deployed(sample_space(), Placement(9, 0), ATTNKIT_SAMPLE, "/", ""), Not(HasSubstr("params")));
}

TEST(ManifestEdit, TheBundledOneHasItsOwnFiles) {
  const ManifestText manifest(text_of(sample));
  const std::string text = manifest.bundled(sample_space(), Placement(9, 1),
                                            {{"weights.file", "w.safetensors"}, {"model.encoder.vocab", "a\"b.txt"}},
                                            "12ab", "made by a test");
  EXPECT_THAT(text, testing::StartsWith("# made by a test\n"));
  EXPECT_THAT(text, HasSubstr("\n[weights]\nfile = \"w.safetensors\"\nsha256 = \"12ab\"\n"));
  EXPECT_THAT(text, HasSubstr("encoder = { layers = 3, vocab = \"a\\\"b.txt\", lowercase = true }"));
  EXPECT_THAT(text, HasSubstr("decoder = { layers = 3, vocab = \"vocab.txt\" }"));
  EXPECT_THAT(text, HasSubstr("\"encoder.self\" = \"relu\"\n"));
  EXPECT_THAT(text, Not(HasSubstr("leap")));
  EXPECT_THAT(text, Not(HasSubstr("search")));
}

TEST(ManifestEdit, NoSeedIsKeptBesideAllTensors) {
  std::string text = text_of(sample);
  text.insert(text.find("sha256"), "seed = 3\n");
  EXPECT_THAT(ManifestText(text).with(sample_space(), Placement(9, 1)), HasSubstr("seed = 3"));
  EXPECT_THAT(ManifestText(text).bundled(sample_space(), Placement(9, 1), {{"weights.file", "w"}}, "12ab", ""),
              Not(HasSubstr("seed")));
}

TEST(ManifestEdit, TheTypeOfTheWeightsStays) {
  std::string text = text_of(sample);
  text.insert(text.find("sha256"), "tf32 = true\ntype = \"int8\"\n");
  EXPECT_THAT(ManifestText(text).bundled(sample_space(), Placement(9, 1), {{"weights.file", "w"}}, "12ab", ""),
              HasSubstr("\n[weights]\nfile = \"w\"\nsha256 = \"12ab\"\ntype = \"int8\"\ntf32 = true\n"));
  EXPECT_THAT(ManifestText(text).with(sample_space(), Placement(9, 1)), HasSubstr("tf32 = true\ntype = \"int8\""));
}

TEST(ManifestEdit, ACommentHasNoControlCharacters) {
  const std::string text = ManifestText(text_of(sample))
                               .deployed(sample_space(), Placement(9, 1), "/m", "/m", "from a\x1b\x7f\r\tb.\nbelow");
  EXPECT_THAT(text, testing::StartsWith("# from a\\u001b\\u007f\\u000d\\u0009b.\n# below\n"));
  ManifestText{text};
}

TEST(ManifestEdit, TheAttentionIsThatOfTheText) {
  const auto attention = [](const std::string& comment, const std::string& choice) {
    return ManifestText("[search]\n" + comment + "[attention]\ndefault = " + choice + "\n").attention();
  };
  EXPECT_EQ(attention("# x\n", "'relu'"), attention("", "\"relu\""));
  EXPECT_NE(attention("", "'relu'"), attention("", "'leap'"));
}

TEST(ManifestEdit, TextThatIsNoTomlIsRefused) {
  EXPECT_THROW(ManifestText("a = [}"), Failure);
  EXPECT_THROW(ManifestText("na\xc3\xafve \xe2\x82\xac"), Failure);
}

}  // namespace
}  // namespace attnkit::core::search
