// Sessions of speech copied, saved and described, and what is refused.
#include "core/api/describe.hpp"
#include "core/base/sha256.hpp"
#include "core/session/blob.hpp"
#include "tests/core/speech/speech_model.hpp"

namespace attnkit::test {
namespace {

TEST(Speech, ClonesAndSavedSessionsGoOnInTheMiddleOfARow) {
  const std::vector<float> samples = speech(3000);
  const SourceBatch all = samples_of(samples);
  for (const auto* models : {&causal_models, &bidirectional_models})
    for (const SpeechModel& from : *models)
      for (const int64_t at : {1, 300, 441, 1001}) {
        const auto model = load(from);
        Session session(model, 2);
        session.read(all.part(0, at), false);
        if (at >= first_row) write({&session}, {1, 1}, 1);
        const std::vector<std::byte> bytes = session.save();
        const auto copy = session.clone(), loaded = Session::load(model, bytes);
        EXPECT_EQ(describe_session(session), describe_session(*loaded));
        EXPECT_EQ(loaded->save(), bytes);
        for (Session* s : {&session, copy.get(), loaded.get()}) s->read(all.part(at, 3000), true);
        const std::vector<float> expected = written(session);
        EXPECT_EQ(expected, written(*copy)) << from.attention << at;
        EXPECT_EQ(expected, written(*loaded)) << from.attention << at;
        EXPECT_EQ(session.save(), Session::load(model, session.save())->save());
      }
}

TEST(Speech, NoByteOfASavedSessionMayFlip) {
  const auto model = load(SpeechModel());
  const std::vector<float> samples = speech(1000);
  Session session(model, 1);
  session.read(samples_of(samples), false);
  std::vector<std::byte> bytes = session.save();
  for (std::byte& b : bytes) {
    b ^= std::byte{0x10};
    EXPECT_THROW(Session::load(model, bytes), Error);
    b ^= std::byte{0x10};
  }
  for (size_t n = 0; n < bytes.size(); n += 97) EXPECT_THROW(Session::load(model, std::span(bytes).first(n)), Error);
}

TEST(Speech, SavedSpeechThatContradictsItselfIsRefused) {
  const auto model = load(SpeechModel());
  const std::vector<float> samples = speech(1000);
  Session session(model, 1);
  session.read(samples_of(samples), false);
  const std::vector<std::byte> honest = session.save();
  const std::string text(reinterpret_cast<const char*>(honest.data()), honest.size());
  const size_t section = text.find("SPCH") + 16;
  ASSERT_LT(section, text.size());
  std::vector<std::byte> blob = honest;
  const auto refused = [&](size_t at, uint32_t value, const char* part = "saved session") {
    std::memcpy(blob.data() + section + at, &value, sizeof value);
    const std::span<std::byte> all(blob);
    const Digest digest = sha256(all.first(blob.size() - sizeof(Digest)));
    std::copy(digest.begin(), digest.end(), blob.end() - sizeof(Digest));
    expect_refused([&] { Session::load(model, std::exchange(blob, honest)); }, part);
  };
  for (const uint32_t kind : {0u, 1u, 3u, 4u, 0xFFFFFFFFu}) refused(0, kind);
  for (const uint32_t units : {0u, 999u, 1001u, 2000u, 0xFFFFFFFFu}) refused(4, units);
  refused(8, 0xFFFFFFFFu);  // units, upper half
  refused(12, 1);           // numbers of rows of the front end, which a causal encoder does not keep
  refused(20, 0);           // samples that wait
  refused(20, 0x7FFFFFFFu);
  std::memset(blob.data() + section, 0, 4);
  refused(4, 0, "rows of a source that was not read");
}

TEST(Speech, TextHasNoSectionOfSpeech) {
  const auto model = load(StreamModel());
  Session session(model, 1);
  session.read(ids_of({3, 4}), false);
  const std::vector<std::byte> bytes = session.save();
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_EQ(text.find("SPCH"), std::string::npos);
  EXPECT_EQ(text.find("frontend"), std::string::npos);
}

TEST(Speech, RefusalsChangeNothing) {
  const auto model = load(SpeechModel()), text = load(StreamModel());
  const std::vector<float> samples = speech(3000), frames = features(*model, samples);
  const SourceBatch all = samples_of(samples);
  Session session(model, 1), other(model, 1);
  for (Session* s : {&session, &other}) s->read(all.part(0, 500), false);
  const std::vector<std::byte> before = session.save();
  std::vector<float> wrong = samples;
  const auto refuse_sample = [&](float value, const std::string& part) {
    wrong[700] = value;
    expect_refused([&] { session.read(samples_of(wrong).part(500, 1000), true); }, part);
    wrong[700] = 0;
  };
  refuse_sample(NAN, "source: row 0 sample 200: nan is not a finite number");
  refuse_sample(INFINITY, "sample 200: inf is not a finite number");
  refuse_sample(16384, "sample 200: 16384 is beyond 16, and samples are within [-1, 1]");
  refuse_sample(-16384, "sample 200: -16384 is beyond 16");
  expect_refused([&] { session.read(frames_of(frames), true); }, "came as samples so far, and now come frames");
  expect_refused([&] { session.read(ids_of({3, 4}), true); }, "this model takes speech: f32 samples");
  expect_refused([&] { session.read(SourceBatch(), true); }, "one row of at least one sample or frame");
  expect_refused([&] { session.read(all.part(0, 0), false); }, "only the last read may bring none");
  const std::vector<float> minute = speech(400000);
  expect_refused([&] { session.read(samples_of(minute), false); }, "rows of the encoder, more than max_length 40");
  expect_refused([&] { session.read(samples_of(minute).part(0, 13000), false); }, "13000 samples after 500 make 41");
  EXPECT_EQ(session.save(), before);
  for (Session* s : {&session, &other}) s->read(all.part(500, 3000), true);
  EXPECT_EQ(written(session), written(other));
  expect_refused([&] { session.read(all, true); }, "the source is complete, 3000 samples were read");

  Session empty(model, 1), of_text(text, 1);
  expect_refused([&] { empty.read(all.part(0, 439), true); },
                 "source: 439 samples are less than the 440 that the first row of the encoder needs");
  expect_refused([&] { empty.read(frames_of(frames).part(0, 3), true); }, "3 frames are less than the 4 that");
  expect_refused([&] { empty.read(SourceBatch::frames(frames.data(), 4, 7), true); },
                 "frames of 7 numbers, this model's have 8");
  expect_refused([&] { written(empty); }, "no source was read yet");
  expect_refused([&] { of_text.read(all, true); }, "this model takes text: int32 ids (rows, length), not f32 samples");
  expect_refused([&] { forward_speech(*text, all, {1}); }, "this model takes text");
  expect_refused([&] { model->forward(ids_of({3}), ids_of({1}), nullptr); }, "this model takes speech");
}

TEST(Speech, IsDescribed) {
  SpeechModel from;
  from.causal = false;
  const auto model = load(from);
  const std::string described = describe_model(*model, {64});
  for (const char* part :
       {"\"speech\":{\"features\":{\"type\":\"fbank\",\"frames\":null,\"sample_rate\":8000,\"bins\":8",
        "\"first_row_samples\":440", "\"row_ms\":40.0"})
    EXPECT_NE(described.find(part), std::string::npos) << part << " in " << described;
  EXPECT_NE(describe_model(*load(TinyModel()), {}).find("\"speech\":null"), std::string::npos);
  Session session(model, 1);
  const std::vector<float> samples = speech(1000);
  session.read(samples_of(samples), false);
  const std::string before = describe_session(session);
  for (const char* part :
       {"\"speech\":{\"unit\":\"samples\",\"read\":1000,\"seconds\":0.125,\"waiting\":360}", "\"source_length\":2"})
    EXPECT_NE(before.find(part), std::string::npos) << part << " in " << before;
  // Rows of the front end, samples from the next frame on, three rows of frames and one of the second layer.
  const auto& source = session.source();
  EXPECT_EQ(source.front.size(), 2u * 16);
  EXPECT_NE(before.find("\"kept_bytes\":" +
                        std::to_string(4 * (32 + source.waiting.samples.size() + source.waiting.rows[0].size() +
                                            source.waiting.rows[1].size()))),
            std::string::npos)
      << before;
  session.read(samples_of(samples).part(0, 0), true);
  EXPECT_NE(describe_session(session).find("\"waiting\":0}"), std::string::npos);
  EXPECT_NE(describe_session(session).find("\"kept_bytes\":0"), std::string::npos);
}

}  // namespace
}  // namespace attnkit::test
