// Models whose weights, or what a file lacks of them, come from a seed.
#include <cmath>

#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

const std::vector<int32_t> source = {3, 4, 5, 6, 7, 2}, target = {1, 8, 9, 4};

// The manifest of a tiny model with this in place of its [weights].
std::string with_weights(const TinyModel& tiny, const std::string& weights) {
  std::string text = tiny.manifest();
  const std::string file = "file = \"w.safetensors\"\n";
  return text.replace(text.find(file), file.size(), weights);
}

// NULL and the messages in `said` when it does not load.
std::shared_ptr<const Model> load_text(const TinyModel& tiny, const std::string& manifest,
                                       std::string* said = nullptr) {
  const TempFolder folder;
  write_tiny(folder, tiny);
  Diagnostics diagnostics;
  auto model = Model::load(runtime(), manifest, folder.path(), diagnostics);
  if (said) *said = all_messages(diagnostics);
  return model;
}

std::vector<float> scores(const Model& model, bool with_target = true) {
  std::vector<float> out((with_target ? target.size() : 1) * static_cast<size_t>(model.outputs()));
  model.forward(ids_of(source), with_target ? ids_of(target) : Ids{}, out.data());
  return out;
}

TEST(Seed, MakesAWholeModelTheSameEachTime) {
  TinyModel tiny;
  tiny.attention = "default = \"leap\"\n";
  const auto one = load_text(tiny, with_weights(tiny, "seed = 1\n"));
  ASSERT_TRUE(one);
  const std::vector<float> first = scores(*one);
  for (const float x : first) EXPECT_TRUE(std::isfinite(x));
  EXPECT_EQ(first, scores(*load_text(tiny, with_weights(tiny, "seed = 1\n"))));
  EXPECT_NE(first, scores(*load_text(tiny, with_weights(tiny, "seed = 2\n"))));
}

TEST(Seed, FillsWhatAFileLacksOfTheMechanismsOwn) {
  TinyModel tiny;
  tiny.attention = "default = \"softmax\"\n\"decoder.self\" = \"leap\"\n";
  std::string said;
  EXPECT_FALSE(load_text(tiny, tiny.manifest(), &said));
  EXPECT_NE(std::string::npos, said.find("decoder.self.1.leap.q_w1")) << said;
  const auto model = load_text(tiny, with_weights(tiny, "file = \"w.safetensors\"\nseed = 1\n"), &said);
  ASSERT_TRUE(model) << said;
  TinyModel full = tiny;
  full.leap_blocks = {"decoder.self.1", "decoder.self.2"};
  const auto trained = load_text(full, with_weights(full, "file = \"w.safetensors\"\nseed = 1\n"));
  EXPECT_EQ(scores(*trained), scores(*load_text(full, full.manifest()))) << "what the file has is taken from it";
  EXPECT_NE(scores(*trained), scores(*model));
}

TEST(Seed, DoesNotMakeWhatTheModelItselfMisses) {
  TinyModel tiny;
  tiny.leave_out = {"decoder.cross.2.q.weight"};
  std::string said;
  EXPECT_FALSE(load_text(tiny, with_weights(tiny, "file = \"w.safetensors\"\nseed = 1\n"), &said));
  EXPECT_NE(std::string::npos, said.find("decoder.cross.2.q.weight")) << said;
}

TEST(Seed, RefusesToMakeAModelThatNoMachineHolds) {
  TinyModel tiny;
  tiny.ffn = 1048576;
  tiny.d = 65536;
  std::string text = with_weights(tiny, "seed = 1\n"), said;
  TinyModel small;
  EXPECT_FALSE(load_text(small, text, &said));
  EXPECT_NE(std::string::npos, said.find("more than 2147483648 numbers")) << said;
}

TEST(Seed, OrAFileMustBeThere) {
  TinyModel tiny;
  std::string said;
  EXPECT_FALSE(load_text(tiny, with_weights(tiny, ""), &said));
  EXPECT_NE(std::string::npos, said.find("needs \"file\", \"seed\" or both")) << said;
  EXPECT_FALSE(load_text(tiny, with_weights(tiny, "seed = 1\nsha256 = \"" + std::string(64, '0') + "\"\n"), &said));
  EXPECT_NE(std::string::npos, said.find("no \"file\" is given")) << said;
}

TEST(Seed, ClassifiersMayHaveAHiddenLayer) {
  TinyModel tiny;
  tiny.kind = "encoder";
  tiny.decoder_layers = 0;
  tiny.tie = false;
  tiny.extra_model = "head = { type = \"classifier\", classes = 3, hidden = 20 }\n";
  const auto model = load_text(tiny, with_weights(tiny, "seed = 1\n"));
  ASSERT_TRUE(model);
  TinyModel flat = tiny;
  flat.extra_model = "head = { type = \"classifier\", classes = 3 }\n";
  const auto plain = load_text(flat, with_weights(flat, "seed = 1\n"));
  EXPECT_EQ(16 * 20 + 20 + 20 * 3 + 3 - (16 * 3 + 3), model->parameters() - plain->parameters());
  EXPECT_EQ(3u, scores(*model, false).size());
  EXPECT_NE(scores(*model, false), scores(*plain, false));
}

TEST(Seed, ClassifiersPoolOnlySequencesThatAreThere) {
  TinyModel tiny;
  tiny.kind = "encoder";
  tiny.decoder_layers = 0;
  tiny.tie = false;
  tiny.extra_model = "head = { type = \"classifier\", classes = 3, of = \"p\" }\n";
  std::string said;
  EXPECT_FALSE(load_text(tiny, with_weights(tiny, "seed = 1\n"), &said));
  EXPECT_NE(std::string::npos, said.find("no block of the encoder gives such a sequence 16 wide")) << said;
}

// luna's P is one tensor of the model, and goes from block to block.
TinyModel packed(const std::string& cross) {
  TinyModel tiny;
  tiny.attention = "default = { use = \"luna\", projection = 4 }\n\"decoder.cross\" = " + cross + "\n";
  return tiny;
}

TEST(Seed, SequencesMustHaveTheShapeThatTheNextBlockTakes) {
  std::string said;
  TinyModel tiny = packed("{ use = \"luna\", projection = 3 }");
  EXPECT_FALSE(load_text(tiny, with_weights(tiny, "seed = 1\n"), &said));
  EXPECT_NE(std::string::npos, said.find("it takes the sequence \"p\" as 3x16, and encoder.self.2 gives 4x16")) << said;
  tiny = packed("{ use = \"luna\", projection = 3, contextual = false }");
  EXPECT_FALSE(load_text(tiny, with_weights(tiny, "seed = 1\n"), &said));
  EXPECT_NE(std::string::npos, said.find("\"model.luna.p_start\" is one for all blocks, and one wants it 4x16"))
      << said;
}

TEST(Seed, ClassifiersThatPoolASequenceTakeNoTokensAsWell) {
  TinyModel tiny;
  tiny.kind = "encoder";
  tiny.decoder_layers = 0;
  tiny.tie = false;
  tiny.attention = "default = \"luna\"\n";
  tiny.extra_model = "head = { type = \"classifier\", classes = 3, of = \"p\" }\n";
  const auto model = load_text(tiny, with_weights(tiny, "seed = 1\n"));
  ASSERT_TRUE(model);
  std::vector<float> out(6, NAN);
  model->forward(Ids{nullptr, 0, 2, 0, nullptr}, {}, out.data());
  for (const float x : out) EXPECT_TRUE(std::isfinite(x));
}

// Of a P longer than the source the mean is that of the rows that count.
TEST(Seed, ClassifiersDoNotPoolRowsThatWereLeftOut) {
  const auto scores_with = [](const char* projection) {
    TinyModel tiny;
    tiny.kind = "encoder";
    tiny.decoder_layers = 0;
    tiny.tie = false;
    tiny.attention = std::string("default = { use = \"luna\", projection = ") + projection + " }\n";
    tiny.extra_model = "head = { type = \"classifier\", classes = 3, of = \"p\" }\n";
    const auto model = load_text(tiny, with_weights(tiny, "seed = 1\n"));
    const std::vector<int32_t> source = {3, 4, 5, 3, 6};
    std::vector<float> out(6);
    for (const int64_t n : {1, 5})
      model->forward(Ids{source.data(), n, 1, n, nullptr}, {}, out.data() + (n == 1 ? 3 : 0));
    return out;
  };
  const std::vector<float> longer = scores_with("16"), exact = scores_with("5");
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(exact[i], longer[i], 1e-6);
  const std::vector<float> one = scores_with("1");
  for (size_t i = 3; i < 6; ++i) EXPECT_NEAR(one[i], longer[i], 1e-6) << "one token";
}

}  // namespace
}  // namespace attnkit::test
