// features and frontend of an encoder: what is taken, and every way to be wrong.
#include "tests/core/speech/speech_model.hpp"

namespace attnkit::test {
namespace {

std::string said_of(const SpeechModel& from) {
  std::string said;
  EXPECT_FALSE(try_load(from, &said));
  return said;
}

void expect_said(const SpeechModel& from, const std::string& part) {
  const std::string said = said_of(from);
  EXPECT_NE(said.find(part), std::string::npos) << "no \"" << part << "\" in: " << said;
}

SpeechModel with_features(const std::string& keys) {
  SpeechModel m;
  m.features = "{ type = \"fbank\"" + keys + " }";
  return m;
}

SpeechModel with_frontend(const std::string& keys) {
  SpeechModel m;
  m.frontend = "{ type = \"conv\"" + keys + " }";
  return m;
}

TEST(SpeechManifest, HasDefaults) {
  SpeechModel from = with_features("");
  from.frontend = "{ type = \"conv\" }";
  const SpeechTable table = load(from)->manifest().speech.value();
  EXPECT_EQ(table.features.sample_rate, 16000);
  EXPECT_EQ(table.features.bins, 80);
  EXPECT_EQ(table.features.window_ms, 25);
  EXPECT_EQ(table.features.shift_ms, 10);
  EXPECT_EQ(table.layers, 2);
  EXPECT_EQ(table.kernel, 3);
  EXPECT_EQ(table.stride, 2);
  EXPECT_EQ(table.channels, 16);
  EXPECT_EQ(table.subsampling(), 4);
}

TEST(SpeechManifest, TakesSpeechOrText) {
  SpeechModel both;
  both.extra_encoder = ", vocab = \"vocab.txt\", lowercase = true";
  expect_said(both, "\"vocab\" is for text, and this encoder has features of speech");
  expect_said(both, "\"lowercase\" is for text");
  SpeechModel half;
  half.frontend = "";
  expect_said(half, "an encoder that takes speech needs \"frontend\"");
  half = {};
  half.features = "";
  expect_said(half, "an encoder that takes speech needs \"features\"");
  half.frontend = "";
  expect_said(half, "[model.encoder] needs \"vocab\", text");
}

TEST(SpeechManifest, BoundsAreChecked) {
  for (const char* keys : {", bins = 0", ", bins = 513", ", sample_rate = 999", ", sample_rate = 384001",
                           ", window_ms = 0", ", window_ms = 1001", ", shift_ms = 0", ", bins = 1.5", ", bin = 3"})
    EXPECT_NE(said_of(with_features(keys)), "") << keys;
  for (const char* keys : {", layers = 0", ", layers = 5", ", kernel = 0", ", stride = 0", ", channels = 0",
                           ", channels = \"many\"", ", kernels = 3"})
    EXPECT_NE(said_of(with_frontend(keys)), "") << keys;
  expect_said(with_features(", window_ms = 20, shift_ms = 21"), "\"shift_ms\" is 21, more than window_ms, 20");
  expect_said(with_frontend(", kernel = 2, stride = 3"), "\"kernel\" is 2, less than stride, 3");
  expect_said(with_features(", sample_rate = 8000, bins = 300"), "AK104");
  SpeechModel other;
  other.features = "{ type = \"mfcc\" }";
  expect_said(other, "\"type\" cannot be \"mfcc\"");
  other.features = "3";
  expect_said(other, "\"features\" must be a table, not an integer");
}

SpeechModel whole_recordings(const std::string& features, const std::string& frontend = "") {
  SpeechModel m;
  m.stream = "";
  m.features = "{ type = \"log_mel\"" + features + " }";
  m.frontend = "{ type = \"centred\"" + frontend + " }";
  return m;
}

TEST(SpeechManifest, TakesWholeRecordings) {
  const auto model = load(whole_recordings(", frames = 31"));
  const SpeechTable table = model->manifest().speech.value();
  EXPECT_EQ(table.frames, 31);
  EXPECT_EQ(table.channels, 16);
  EXPECT_EQ(table.subsampling(), 2);
  const Frontend& frontend = *model->frontend();
  // As many rows of every recording, and never less than all of a row's frames.
  EXPECT_EQ(frontend.rows(SourceKind::samples, 1), 16);
  EXPECT_EQ(frontend.rows(SourceKind::samples, 4960), 16);
  const std::vector<float> samples = speech(8000);
  std::string said;
  try {
    model->check_source(SourceBatch::samples(samples.data(), 8000));
  } catch (const Error& e) {
    said = e.what();
  }
  EXPECT_EQ(said, "source: 8000 samples are 0.50 s, and this model takes up to 0.31 s at once: split the recording");
}

TEST(SpeechManifest, RefusesWhatWholeRecordingsCannotHave) {
  expect_said(whole_recordings(""), "features of type \"log_mel\" need \"frames\"");
  expect_said(whole_recordings(", frames = 1"), "1 frames every 160 samples are too few");
  expect_said(whole_recordings(", frames = 1000"), "1000 frames make 500 rows of the encoder, more than max_length");
  expect_said(whole_recordings(", frames = 30", ", kernel = 4"), "\"kernel\" is 4, an even number");
  expect_said(whole_recordings(", frames = 30", ", channels = 8"), "\"channels\" is for type = \"conv\"");
  expect_said(with_features(", frames = 30"), "\"frames\" is for type = \"log_mel\"");
  SpeechModel growing = whole_recordings(", frames = 30");
  growing.stream = "[stream]\n";
  expect_said(growing, "[stream] needs frames that come with the speech");
  SpeechModel mixed = whole_recordings(", frames = 30");
  mixed.frontend = "{ type = \"conv\" }";
  expect_said(mixed, "features of type \"log_mel\" and a frontend of type \"centred\" go together");
}

TEST(SpeechManifest, AnEncoderAloneClassifies) {
  SpeechModel from;
  from.kind = "encoder";
  expect_said(from, "an encoder alone that takes speech has no tokens to score");
  from.extra_model = "head = { type = \"classifier\", classes = 3 }\n";
  const auto model = load(from);
  const std::vector<float> samples = speech(2000);
  std::vector<float> scores(3, NAN);
  model->forward(samples_of(samples), {}, scores.data());
  for (const float x : scores) EXPECT_TRUE(std::isfinite(x));
}

TEST(SpeechManifest, OnlyEncodersTakeSpeech) {
  SpeechModel from;
  std::string text = from.manifest();
  const std::string decoder = "decoder = { layers = 2, vocab";
  text.replace(text.find(decoder), decoder.size(), "decoder = { layers = 2, features = { type = \"fbank\" }, vocab");
  const TempFolder folder;
  write_tiny(folder, TinyModel());
  Diagnostics diagnostics;
  EXPECT_FALSE(Model::load(runtime(), text, folder.path(), diagnostics));
  EXPECT_NE(all_messages(diagnostics).find("unknown key \"features\""), std::string::npos) << all_messages(diagnostics);
}

TEST(SpeechManifest, WeightsAreNamedAndChecked) {
  TinyModel tiny;
  const TempFolder folder;
  write_tiny(folder, tiny);
  std::string text = SpeechModel().manifest();
  const std::string seed = "seed = 1";
  text.replace(text.find(seed), seed.size(), "file = \"w.safetensors\"");
  Diagnostics diagnostics;
  EXPECT_FALSE(Model::load(runtime(), text, folder.path(), diagnostics));
  const std::string said = all_messages(diagnostics);
  for (const char* name : {"encoder.features.mean", "encoder.features.scale", "encoder.frontend.conv.1.weight",
                           "encoder.frontend.conv.2.bias", "encoder.frontend.out.weight", "encoder.frontend.out.bias",
                           "tensor \"encoder.embed.weight\" of shape 11x16 belongs to nothing in this model"})
    EXPECT_NE(said.find(name), std::string::npos) << name << " in " << said;
}

TEST(SpeechManifest, TheSeedDecidesTheWeights) {
  SpeechModel from;
  const auto one = load(from), same = load(from);
  from.seed = 2;
  const auto other = load(from);
  EXPECT_EQ(one->digest(), same->digest());
  EXPECT_NE(one->digest(), other->digest());
  EXPECT_GT(one->parameters(), one->frontend()->parameters());
  EXPECT_EQ(one->frontend()->parameters(), (8 * 3 + 1) * 12 + (12 * 3 + 1) * 12 + (12 + 1) * 16);
}

TEST(SpeechManifest, LengthsAreNotSummedOverTokens) {
  SpeechModel from;
  from.length = "[length]\npredict = \"lut\"\nlut = \"lengths.tsv\"\n";
  expect_said(from, "predict = \"lut\" sums over the source's tokens; speech has none");
}

TEST(SpeechManifest, MechanismsAreAskedAsForText) {
  SpeechModel from;
  from.attention = "default = \"softmax\"\n\"encoder.self\" = \"nystromformer\"\n";
  expect_said(from, "encoder.self cannot be \"nystromformer\"");
  from.causal = false;
  load(from);
}

}  // namespace
}  // namespace attnkit::test
