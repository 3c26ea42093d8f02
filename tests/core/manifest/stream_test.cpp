// [stream] in a manifest, and what it refuses.
#include "core/api/describe.hpp"
#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {
namespace {

std::string refused(const StreamModel& model) {
  std::string said;
  EXPECT_FALSE(try_load(model, &said));
  return said;
}

// The help of the first problem.
std::string help_for(const StreamModel& model) {
  const TempFolder folder;
  write_tiny(folder, TinyModel());
  Diagnostics diagnostics;
  EXPECT_FALSE(Model::load(runtime(), model.manifest(), folder.path(), diagnostics));
  return diagnostics.sorted().at(0).help;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(std::string::npos, text.find(part)) << "no \"" << part << "\" in\n" << text;
}

TEST(ManifestStream, IsDescribed) {
  StreamModel m;
  m.stream = "[stream]\npolicy = \"wait-k\"\nk = 5\npre_decision = 7\nreplay = true\n";
  expect_part(describe_model(*load(m), {}),
              "\"stream\":{\"policy\":\"wait-k\",\"k\":5,\"pre_decision\":7,\"replay\":true}");
  m.stream = "[stream]\n";
  expect_part(describe_model(*load(m), {}),
              "\"stream\":{\"policy\":\"wait-k\",\"k\":3,\"pre_decision\":1,\"replay\":false}");
  m.stream = "[stream]\npolicy = \"offline\"\n";
  expect_part(describe_model(*load(m), {}), "\"policy\":\"offline\"");
  m.stream = "";
  expect_part(describe_model(*load(m), {}), "\"stream\":null");
}

TEST(ManifestStream, WrongKeysAreNamed) {
  StreamModel m;
  m.stream = "[stream]\npolicy = \"wait-3\"\nk = 0\npre_decision = \"7\"\nreplays = true\n";
  const std::string said = refused(m);
  expect_part(said, "AK104 \"policy\" cannot be \"wait-3\"; did you mean \"wait-k\"?");
  expect_part(said, "AK104 \"k\" is 0; it must be an integer from 1");
  expect_part(said, "AK103 \"pre_decision\" must be an integer");
  expect_part(said, "AK101 unknown key \"replays\"; did you mean \"replay\"?");
  m.stream = "[stream]\npolicy = \"offline\"\nk = 3\n";
  expect_part(refused(m), "AK113 \"k\" is for policy = \"wait-k\" only");
}

TEST(ManifestStream, CosformerCannotReadASourceThatGrows) {
  StreamModel m;
  m.attention = "default = \"softmax\"\n\"decoder.cross\" = \"cosformer\"\n";
  const TempFolder folder;
  write_tiny(folder, TinyModel());
  Diagnostics diagnostics;
  EXPECT_FALSE(Model::load(runtime(), m.manifest(), folder.path(), diagnostics));
  const Diagnostic d = diagnostics.sorted().at(0);
  EXPECT_EQ(203, d.code);
  EXPECT_EQ(19, d.place.column) << "the mechanism's name";
  EXPECT_EQ(
      "decoder.cross cannot be \"cosformer\" under [stream]: cosformer's angles need the whole source length, and a "
      "source that still grows has none: read all of it first, or use a mechanism without positions such as relu or "
      "leap",
      d.message);
  expect_part(d.help, "set replay = true in [stream] (where the manifest has none: attnkit stream --replay), or use ");
  expect_part(d.help, "\"softmax\"");
  EXPECT_EQ(std::string::npos, d.help.find("luna")) << d.help;
  m.stream = "[stream]\nreplay = true\n";
  expect_part(describe_model(*load(m), {}), "\"replays\":true");
  m.stream = "";
  EXPECT_TRUE(load(m));
}

TEST(ManifestStream, ALengthPredictedFromTheSourceIsNotKnown) {
  StreamModel m;
  m.attention = "default = \"softmax\"\n\"decoder.self\" = \"cosformer\"\n";
  EXPECT_TRUE(load(m)) << "a fixed length is known";
  m.length = "[length]\npredict = \"ratio\"\nalpha = 0.9\n";
  for (const char* stream : {"[stream]\n", "[stream]\nreplay = true\n"}) {
    m.stream = stream;
    expect_part(refused(m), "decoder.self cannot be \"cosformer\" under [stream]: cosformer's angles need the whole");
    EXPECT_EQ("set predict = \"fixed\" or \"reference\" in [length], or use \"softmax\"", help_for(m));
  }
  m.stream = "";
  EXPECT_TRUE(load(m));
}

TEST(ManifestStream, ACausalEncoderMustStream) {
  StreamModel m;
  m.causal = true;
  m.attention = "default = \"softmax\"\n\"encoder.self\" = \"cosformer\"\n";
  expect_part(
      refused(m),
      "encoder.self cannot be \"cosformer\" under [stream]: cosformer's angles need the whole source length, and "
      "a source that still grows has none");
  EXPECT_EQ("set causal = false of the encoder, which then runs anew at each read, or use \"softmax\"", help_for(m));
  m.causal = false;
  EXPECT_TRUE(load(m));
}

TEST(ManifestStream, CausalBlocksCannotFollowSequencesThatAreMadeAnew) {
  StreamModel m;
  m.stream = "[stream]\nreplay = true\n";
  m.attention = "default = \"luna\"\n\"decoder.cross\" = \"softmax\"\n";
  expect_part(refused(m),
              "decoder.self cannot be \"luna\" under [stream]: it keeps what it made of the sequence \"p\"");
  m.attention = "default = \"softmax\"\n\"decoder.self\" = \"luna\"\n";
  EXPECT_TRUE(load(m)) << "nobody gives it a sequence";
  m.attention = "default = \"softmax\"\n\"decoder.self\" = \"luna\"\n\"decoder.cross\" = \"luna\"\n";
  expect_part(refused(m), "decoder.self (layer 2) cannot be \"luna\" under [stream]");
  m.attention = "default = \"luna\"\n\"decoder.self\" = \"softmax\"\n";
  EXPECT_TRUE(load(m));
  m.stream = "[stream]\n";
  expect_part(refused(m), "decoder.cross cannot be \"luna\" under [stream]: ");
}

TEST(ManifestStream, CrossBlocksFollowSequencesOnlyByReplay) {
  StreamModel m;
  m.plugins = {ATTNKIT_CARRIER_PLUGIN, ATTNKIT_PLUGIN_FOLDER};
  m.attention = "default = \"fake_carrier\"\n\"decoder.self\" = \"softmax\"\n";
  expect_part(refused(m),
              "decoder.cross cannot be \"fake_carrier\" under [stream]: its state holds what it made of the "
              "sequence \"carried\"");
  m.stream = "[stream]\nreplay = true\n";
  expect_part(describe_model(*load(m), {}), "\"block\":\"decoder.cross.1\"");
}

TEST(ManifestStream, IsForPairsOfStacks) {
  TinyModel tiny;
  tiny.kind = "decoder";
  tiny.encoder_layers = 0;
  tiny.tail = "[stream]\n";
  expect_part(load_errors(tiny),
              "AK113 [stream] is for models with an encoder and a decoder, not for kind \"decoder\"");
}

}  // namespace
}  // namespace attnkit::test
