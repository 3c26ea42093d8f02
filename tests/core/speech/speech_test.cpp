// Models and sessions whose source is speech: whole, in batches, in pieces.
#include "tests/core/speech/speech_model.hpp"

namespace attnkit::test {
namespace {

TEST(Speech, SamplesAreTheirFrames) {
  const auto model = load(SpeechModel());
  const std::vector<float> samples = speech(3000), frames = features(*model, samples);
  const std::vector<int32_t> target = {1, 5, 6};
  EXPECT_EQ(forward_speech(*model, samples_of(samples), target), forward_speech(*model, frames_of(frames), target));
}

TEST(Speech, NeitherPaddingNorOtherRowsMatter) {
  for (const bool causal : {true, false}) {
    SpeechModel from;
    from.causal = causal;
    const auto model = load(from);
    const std::vector<size_t> lengths = {3000, 1700, 470, 0, 2999};
    std::vector<float> batch(lengths.size() * 3000, NAN);
    std::vector<int32_t> lens;
    for (size_t b = 0; b < lengths.size(); ++b) {
      const std::vector<float> row = speech(lengths[b], static_cast<unsigned>(b));
      std::copy(row.begin(), row.end(), batch.begin() + static_cast<std::ptrdiff_t>(b * 3000));
      lens.push_back(static_cast<int32_t>(lengths[b]));
    }
    const std::vector<int32_t> target = {1, 5, 6};
    std::vector<int32_t> targets;
    for (size_t b = 0; b < lengths.size(); ++b) targets.insert(targets.end(), target.begin(), target.end());
    const std::vector<float> all =
        forward_speech(*model, SourceBatch::samples(batch.data(), 3000, 5, lens.data()), targets);
    const size_t width = target.size() * static_cast<size_t>(model->outputs());
    for (size_t b = 0; b < lengths.size(); ++b) {
      const std::vector<float> alone = forward_speech(
          *model, SourceBatch::samples(batch.data() + b * 3000, static_cast<int64_t>(lengths[b])), target);
      EXPECT_EQ(alone, std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(b * width),
                                          all.begin() + static_cast<std::ptrdiff_t>((b + 1) * width)))
          << b;
    }
  }
}

TEST(Speech, EncodeAndDecodeAreForward) {
  const auto model = load(SpeechModel());
  const std::vector<float> samples = speech(3000);
  const std::vector<int32_t> target = {1, 5, 6};
  std::vector<float> out(3 * static_cast<size_t>(model->outputs()));
  const auto encoded = model->encode(samples_of(samples));
  EXPECT_EQ(encoded->length, model->source_rows(samples_of(samples)));
  model->decode(*encoded, ids_of(target), out.data());
  EXPECT_EQ(out, forward_speech(*model, samples_of(samples), target));
}

TEST(Speech, AnotherFrontendIsAnotherEncoder) {
  SpeechModel from;
  const auto one = load(from);
  from.frontend = "{ type = \"conv\", channels = 12, stride = 1 }";
  const auto other = load(from);
  const std::vector<float> samples = speech(3000);
  const auto encoded = one->encode(samples_of(samples));
  expect_refused([&] { other->check_decode(*encoded, ids_of({1})); },
                 "frontend is conv of 2 layers, kernel 3, stride 2");
  const auto text = load(TinyModel());
  expect_refused([&] { text->check_decode(*encoded, ids_of({1})); }, "by another encoder: ");
}

TEST(Speech, EmbedScaleIsOfEmbeddingsAlone) {
  SpeechModel from;
  from.kind = "encoder";
  from.extra_model = "head = { type = \"classifier\", classes = 3 }\n";
  const auto plain = load(from);
  from.extra_model += "embed_scale = true\n";
  const auto scaled = load(from);
  const std::vector<float> samples = speech(2000);
  std::vector<float> one(3), two(3);
  plain->forward(samples_of(samples), {}, one.data());
  scaled->forward(samples_of(samples), {}, two.data());
  EXPECT_EQ(one, two);
}

TEST(Speech, SessionsGiveWhatForwardDoes) {
  const std::vector<float> samples = speech(3500);
  for (const auto* models : {&causal_models, &bidirectional_models})
    for (const SpeechModel& from : *models) {
      const auto model = load(from);
      Session session(model, 1);
      session.read(samples_of(samples), true);
      const std::vector<float> found = written(session);
      EXPECT_LT(relative_error(found, forward_speech(*model, samples_of(samples), {1, 5, 7, 4})), 5e-6)
          << from.attention;
    }
}

TEST(Speech, SplitsOfSamplesDoNotMatter) {
  const std::vector<float> samples = speech(3501);
  for (const SpeechModel& from : causal_models) {
    const auto model = load(from);
    const std::vector<float> frames = features(*model, samples);
    Session by_rows(model, 1), by_frames(model, 1), by_samples(model, 1), whole(model, 1);
    whole.read(samples_of(samples));
    read_in_chunks(by_rows, frames_of(frames), 4);
    read_in_chunks(by_frames, frames_of(frames), 1);
    read_in_chunks(by_samples, samples_of(samples), 37);
    const std::vector<float> expected = written(whole), rows = written(by_rows);
    EXPECT_EQ(rows, written(by_frames)) << from.attention;
    EXPECT_EQ(rows, written(by_samples)) << from.attention;
    EXPECT_LT(relative_error(rows, expected), 5e-6) << from.attention;
    EXPECT_EQ(by_samples.source_length(), whole.source_length());
  }
}

TEST(Speech, TheLastRunOfABidirectionalEncoderIsTheWholes) {
  const std::vector<float> samples = speech(3501);
  for (const SpeechModel& from : bidirectional_models) {
    const auto model = load(from);
    Session whole(model, 1);
    whole.read(samples_of(samples));
    const std::vector<float> expected = written(whole);
    for (const int64_t chunk : {37, 440, 1000, 3500}) {
      Session session(model, 1);
      read_in_chunks(session, samples_of(samples), chunk);
      EXPECT_EQ(expected, written(session)) << from.attention << " by " << chunk;
    }
  }
}

TEST(Speech, WaitsForWholeRows) {
  const auto model = load(SpeechModel());
  const std::vector<float> samples = speech(2000);
  const SourceBatch all = samples_of(samples);
  Session session(model, 1);
  session.read(all.part(0, first_row - 1), false);
  EXPECT_EQ(session.source_length(), 0);
  expect_refused([&] { written(session); },
                 "source: 439 samples are less than the 440 that the first row of the encoder needs");
  session.read(all.part(first_row - 1, first_row), false);
  EXPECT_EQ(session.source_length(), 1);
  EXPECT_EQ(session.source().reads, 2);
  write({&session}, {1}, 1);
  session.read(all.part(first_row, 2000), false);
  session.read(all.part(0, 0), true);
  EXPECT_TRUE(session.source().complete);
  EXPECT_EQ(session.source_length(), model->source_rows(all));
  EXPECT_TRUE(session.source().waiting.samples.empty());
  EXPECT_FALSE(session.generate(4).empty());
}

TEST(Speech, NeedsStreamInTheManifestOnlyToGrow) {
  SpeechModel from;
  from.stream = "";
  const auto model = load(from);
  const std::vector<float> samples = speech(2000);
  Session session(model, 1);
  EXPECT_THROW(session.read(samples_of(samples), false), Error);
  session.read(samples_of(samples), true);
  EXPECT_FALSE(session.generate(3).empty());
}

TEST(Speech, LengthsAreRowsOfTheEncoder) {
  SpeechModel from;
  from.stream = "";
  from.length = "[length]\npredict = \"ratio\"\nalpha = 0.5\n";
  Session session(load(from), 1);
  const std::vector<float> samples = speech(3000);
  session.read(samples_of(samples), true);
  EXPECT_EQ(session.target_total().value_or(0), 0.5 * static_cast<double>(session.source_length()));
  EXPECT_EQ(session.default_limit(), session.source_length() * 3 / 2 + 20);
}

}  // namespace
}  // namespace attnkit::test
