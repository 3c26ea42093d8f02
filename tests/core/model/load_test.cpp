#include "core/model/model.hpp"
#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

TEST(ModelLoading, NamesEveryTensorThatIsMissingWrongOrTooMany) {
  TinyModel tiny;
  tiny.leave_out = {"encoder.self.1.q.weight", "decoder.cross.2.o.bias"};
  tiny.more = {{"decoder.ffn.1.in.bias", {3}}, {"decoder.self.9.q.bias", {16}}};
  tiny.leave_out.push_back("decoder.ffn.2.in.bias");
  const std::string text = load_errors(tiny);
  for (const char* name :
       {"encoder.self.1.q.weight", "decoder.cross.2.o.bias", "decoder.ffn.2.in.bias", "decoder.self.9.q.bias"})
    EXPECT_NE(text.find(name), std::string::npos) << name << " in\n" << text;
}

TEST(ModelLoading, RequiresTheTensorsOfTheChosenMechanismOnly) {
  TinyModel tiny;
  tiny.leap_blocks = {"decoder.cross.1", "decoder.cross.2"};
  load(tiny);  // stored, not chosen: ignored
  tiny.attention += "\"decoder.cross\" = { use = \"leap\", factor = 4 }\n";
  load(tiny);
  tiny.leap_blocks.pop_back();
  EXPECT_NE(load_errors(tiny).find("decoder.cross.2.leap.q_w1"), std::string::npos);
}

TEST(ModelLoading, IgnoresSharedProjectionsThatAMechanismHasNoPortFor) {
  TinyModel tiny;
  tiny.attention = "default = \"softmax\"\n\"encoder.self\" = \"fake_plain\"\n";
  const TempFolder folder;
  write_tiny(folder, tiny);
  const auto with_fakes =
      std::make_shared<Runtime>(std::vector<std::string>{ATTNKIT_PLUGIN_FOLDER, ATTNKIT_FAKE_PLUGINS}, 1, 1);
  Diagnostics diagnostics;
  EXPECT_TRUE(Model::load(with_fakes, tiny.manifest(), folder.path(), diagnostics)) << all_messages(diagnostics);
  tiny.more = {{"encoder.self.1.q.wieght", {16}}};
  write_tiny(folder, tiny);
  EXPECT_FALSE(Model::load(with_fakes, tiny.manifest(), folder.path(), diagnostics));
}

TEST(ModelLoading, StopsEarlyWhenNothingFits) {
  TinyModel tiny;
  const TempFolder folder;
  write_tiny(folder, tiny);
  tiny.d = 1 << 16;  // zeros of this model would fill the machine
  Diagnostics diagnostics;
  EXPECT_FALSE(Model::load(runtime(), tiny.manifest(), folder.path(), diagnostics));
  EXPECT_NE(all_messages(diagnostics).find("were not looked at"), std::string::npos) << all_messages(diagnostics);
  EXPECT_LE(diagnostics.sorted().size(), 25u);
}

TEST(ModelLoading, RefusesVocabulariesWhoseSpecialTokensDiffer) {
  TinyModel tiny;
  const TempFolder folder;
  write_tiny(folder, tiny);
  folder.write("other.txt",
               "</s>\n<s>\n\u2581a\n\u2581b\n\u2581c\n\u2581d\n\u2581e\n\u2581f\n\u2581g\n\u2581h\n\u2581i\n");
  std::string toml = tiny.manifest();
  toml.replace(toml.rfind("vocab.txt"), 9, "other.txt");
  Diagnostics diagnostics;
  EXPECT_FALSE(Model::load(runtime(), toml, folder.path(), diagnostics));
  EXPECT_NE(all_messages(diagnostics).find("AK121 texts end in token"), std::string::npos) << all_messages(diagnostics);
}

TEST(ModelLoading, RefusesAWidthThatTheWeightsDoNotHave) {
  TinyModel tiny;
  const TempFolder folder;
  write_tiny(folder, tiny);
  tiny.ffn = 32;
  Diagnostics diagnostics;
  EXPECT_FALSE(Model::load(runtime(), tiny.manifest(), folder.path(), diagnostics));
  EXPECT_NE(all_messages(diagnostics).find("AK401"), std::string::npos) << all_messages(diagnostics);
}

// Nobody would notice otherwise that the order of tokens counts for less.
TEST(ModelLoading, WarnsOfPositionsThatAMechanismCannotTake) {
  TinyModel tiny;
  tiny.extra_model = "positions = \"rotary\"\n";
  const TempFolder folder;
  write_tiny(folder, tiny);
  folder.write("own.toml", R"(schema = "attnkit.architecture/1"
[tensors]
positions = "relative_bias"
[tensors.names]
"encoder.*" = "encoder.*"
"decoder.*" = "decoder.*"
)");
  const auto warnings = [&](const std::string& attention, bool named) {
    tiny.attention = attention;
    std::string text = tiny.manifest();
    text.replace(text.find("[weights]\n"), 10,
                 std::string("[weights]\nseed = 1\n") + (named ? "names = \"own.toml\"\n" : ""));
    Diagnostics diagnostics;
    EXPECT_TRUE(Model::load(runtime(), text, folder.path(), diagnostics)) << all_messages(diagnostics);
    std::vector<std::string> said;
    for (const Diagnostic& d : diagnostics.sorted()) {
      EXPECT_EQ(d.code, ak::lost_positions) << d.message;
      EXPECT_GT(d.place.line, 0);
      said.push_back(d.message);
    }
    return said;
  };
  const std::string softmax = "default = \"softmax\"\n";
  EXPECT_EQ(warnings(softmax, false), std::vector<std::string>{});
  EXPECT_EQ(warnings(softmax + "\"encoder.self\" = \"latte\"\n", false),
            (std::vector<std::string>{
                "encoder.self.1: \"latte\" has no q and k of the block's heads, which rotary positions would turn",
                "encoder.self.2: \"latte\" has no q and k of the block's heads, which rotary positions would turn"}));
  tiny.extra_model = "positions = \"none\"\n";
  EXPECT_EQ(warnings(softmax + "\"encoder.self\" = \"relative_bias\"\n\"decoder.self\" = \"relative_bias\"\n", true),
            std::vector<std::string>{});
  EXPECT_EQ(
      warnings(softmax + "\"encoder.self\" = \"relative_bias\"\n\"decoder.self\" = \"relative_bias\"\n"
                         "[[attention.override]]\nblock = \"decoder.self\"\nlayers = 2\nuse = \"relu\"\n",
               true),
      std::vector<std::string>{"decoder.self.2: \"relu\" does not read the tensors of \"relative_bias\", in which this "
                               "model has its positions"});
}

TEST(ModelLoading, WeightsOfAFileThatChangedAreNotThoseOfTheModel) {
  TinyModel tiny;
  const TempFolder folder;
  write_tiny(folder, tiny);
  Diagnostics diagnostics;
  const auto model = Model::load(runtime(), tiny.manifest(), folder.path(), diagnostics);
  ASSERT_TRUE(model) << all_messages(diagnostics);
  EXPECT_FALSE(model->weights().empty());
  const std::string path = folder.path() + "/w.safetensors";
  std::filesystem::rename(path, path + ".old");
  tiny.seed = 8;
  write_tiny(folder, tiny);
  try {
    model->weights();
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("was changed since the model was loaded"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace attnkit::test
