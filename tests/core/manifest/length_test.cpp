// [length] predict = "lut" and "network": every mistake, where it stands.
#include "tests/core/length/length_model.hpp"

namespace attnkit::test {
namespace {

// "line:column: AK... message" of what is wrong, the line counted from that of [length].
std::string refused(const LengthFolder& folder, const std::string& length,
                    const std::string& kind = "encoder-decoder") {
  TinyModel tiny;
  tiny.kind = kind;
  if (kind == "decoder") tiny.encoder_layers = 0;
  const std::string before = tiny.manifest();
  Diagnostics diagnostics;
  const auto lines = static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  const std::string dir = std::filesystem::path(folder.path("x")).parent_path();
  EXPECT_FALSE(Model::load(runtime(), before + length, dir, diagnostics)) << length;
  std::string text;
  for (const Diagnostic& d : diagnostics.sorted())
    text += fmt::format("{}:{}: AK{} {}\n", d.place.line - lines, d.place.column, d.code, d.message);
  for (size_t at; (at = text.find(dir + "/")) != std::string::npos;) text.erase(at, dir.size() + 1);
  return text;
}

TEST(ManifestLength, WrongKeysAreNamed) {
  const LengthFolder folder;
  EXPECT_EQ(refused(folder, "[length]\npredict = \"lut\"\n"), "1:1: AK102 predict = \"lut\" needs \"lut\"\n");
  EXPECT_EQ(refused(folder, "[length]\npredict = \"network\"\n"), "1:1: AK102 predict = \"network\" needs \"file\"\n");
  EXPECT_EQ(refused(folder, by_table + "alpha = 1\nfile = \"length.safetensors\"\n"),
            "4:1: AK113 \"alpha\" is for predict = \"ratio\" only\n"
            "5:1: AK113 \"file\" is for predict = \"network\" only\n");
  EXPECT_EQ(refused(folder, by_network + "dampening = 1\nlut = \"lengths.tsv\"\n"),
            "4:1: AK113 \"dampening\" is for predict = \"lut\" only\n"
            "5:1: AK113 \"lut\" is for predict = \"lut\" only\n");
  EXPECT_EQ(refused(folder, by_table + "dampening = 0\n"),
            "4:13: AK104 \"dampening\" is 0; it must be a number from 1e-06 to 1000000\n");
  EXPECT_EQ(refused(folder, by_network + "sha256 = \"12\"\n"),
            "4:10: AK104 \"sha256\" must be 64 hexadecimal digits\n");
  EXPECT_EQ(refused(folder, "[length]\npredict = \"lut\"\nlut = 3\n"),
            "3:7: AK103 \"lut\" must be text, not an integer\n");
}

TEST(ManifestLength, ADecoderAloneHasNoSource) {
  const LengthFolder folder;
  for (const std::string name : {"lut", "network"})
    EXPECT_EQ(refused(folder, name == "lut" ? by_table : by_network, "decoder"),
              "2:11: AK113 predict = \"" + name + "\" looks at the source; a decoder alone has none\n");
}

TEST(ManifestLength, TablesAreReadWithTheManifest) {
  const LengthFolder folder;
  const auto wrong = [&](const std::string& content) {
    folder.write("lengths.tsv", content);
    return refused(folder, by_table);
  };
  EXPECT_EQ(wrong(""), "3:7: AK122 lengths.tsv:1: the file is empty; every line is a token, a TAB, a number\n");
  EXPECT_EQ(wrong("\u2581a\t1\nz\t1\n"), "3:7: AK122 lengths.tsv:2: token \"z\" is not in the source vocabulary\n");
  EXPECT_EQ(wrong("\u2581a\t1\r\n\u2581b\t1\r\n\u2581a\t2\r\n"),
            "3:7: AK122 lengths.tsv:3: token \"\u2581a\" is on line 1 already\n");
  EXPECT_EQ(wrong("\u2581a 1\n"), "3:7: AK122 lengths.tsv:1: has no TAB; every line is a token, a TAB, a number\n");
  EXPECT_EQ(wrong("\u2581a\t1\n\n"), "3:7: AK122 lengths.tsv:2: has no TAB; every line is a token, a TAB, a number\n");
  EXPECT_EQ(wrong("\u2581a\t1\n\xff\t1\n"), "3:7: AK122 lengths.tsv:2:1: is not UTF-8\n");
  for (const std::string number : {"-1", "nan", "inf", "-0.5", "1e999", "", "x", "1.5x", " 1"})
    EXPECT_EQ(wrong("\u2581b\t1\n\u2581a\t" + number + "\n"),
              "3:7: AK122 lengths.tsv:2: the mean of \"\u2581a\" is \"" + number + "\"; it must be a number from 0\n");
  std::filesystem::remove(folder.path("lengths.tsv"));
  EXPECT_EQ(refused(folder, by_table), "3:7: AK122 lengths.tsv: cannot be opened: No such file or directory\n");
  folder.write("lengths.tsv", "\ufeff\u2581a\t1e0\r\n</s>\t0.5");
  EXPECT_TRUE(folder.load(cosformers(by_table))) << "a byte order mark, CR LF, no end of the last line";
}

TEST(ManifestLength, NetworksMustFitTheModel) {
  const LengthFolder folder;
  std::filesystem::remove(folder.path("length.safetensors"));
  EXPECT_EQ(refused(folder, by_network), "3:8: AK120 length.safetensors: does not exist\n");
  folder.write("length.safetensors", "no tensors");
  EXPECT_NE(refused(folder, by_network).find("3:8: AK401 length.safetensors: a header of "), std::string::npos);
  const auto wrong = [](const TinyModel::Shapes& shapes) { return refused(LengthFolder(shapes), by_network); };
  EXPECT_EQ(wrong(network_shapes(channels, 8)),
            "3:8: AK401 length.safetensors: tensor \"length.conv.1.weight\" is 5x8x3, the model needs 5x16x3\n");
  auto shapes = network_shapes();
  shapes.erase("length.out.bias");
  shapes["length.conv.2.weight"] = {5, 5, 5};
  shapes["length.conv.3.weight"] = {5, 5, 3};
  EXPECT_EQ(wrong(shapes),
            "3:8: AK401 length.safetensors: tensor \"length.conv.2.weight\" is 5x5x5, the model needs 5x5x3\n"
            "3:8: AK401 length.safetensors: no tensor \"length.out.bias\"\n"
            "3:8: AK402 length.safetensors: tensor \"length.conv.3.weight\" of shape 5x5x3 belongs to nothing in this "
            "model\n");
  shapes = network_shapes();
  shapes["length.conv.1.weight"] = {80};
  EXPECT_NE(wrong(shapes).find("\"length.conv.1.weight\" is 80, the model needs 128x16x3"), std::string::npos);
  const std::string other(64, 'A');
  EXPECT_NE(refused(LengthFolder(), by_network + "sha256 = \"" + other + "\"\n").find("the manifest says aaaaaaaaaaaa"),
            std::string::npos);
}

TEST(ManifestLength, LengthsOfSourcesThatGrowAreNotKnown) {
  const LengthFolder folder;
  for (const std::string& length : {by_table, by_network}) {
    StreamModel m = cosformers(length);
    m.attention = "default = \"softmax\"\n\"decoder.self\" = \"cosformer\"\n";
    EXPECT_TRUE(folder.load(m));
    m.stream = "[stream]\n";
    std::string said;
    EXPECT_FALSE(folder.try_load(m.manifest(), &said));
    EXPECT_NE(said.find("decoder.self cannot be \"cosformer\" under [stream]"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace attnkit::test
