// Models and sessions whose source is speech: whole, in batches, in pieces, copied, saved, and what is refused.
#include "core/describe_model.hpp"
#include "core/session_blob.hpp"
#include "core/sha256.hpp"
#include "core/simultaneous.hpp"
#include "speech_model.hpp"

namespace attnkit::test {
namespace {

constexpr int64_t first_row = 200 + 3 * 80;

std::vector<float> forward_speech(const Model& model, const RawSource& source, const std::vector<int32_t>& target) {
  std::vector<float> out(target.size() * static_cast<size_t>(model.outputs()), NAN);
  model.forward(source, ids_of(target, source.batch), out.data());
  return out;
}

void expect_refused(const std::function<void()>& f, const std::string& part) {
  const std::string said = refusal_of(f);
  EXPECT_NE(said.find(part), std::string::npos) << "no \"" << part << "\" in: " << said;
}

SpeechModel with(const std::string& encoder, const std::string& cross, bool causal) {
  SpeechModel from;
  from.causal = causal;
  from.attention =
      "default = \"softmax\"\n\"encoder.self\" = \"" + encoder + "\"\n\"decoder.cross\" = \"" + cross + "\"\n";
  from.stream = "[stream]\nreplay = true\n";
  return from;
}

const std::vector<SpeechModel> causal_models = {with("softmax", "softmax", true), with("relu", "linear", true),
                                                with("leap", "cosformer", true),  with("s4d", "relu", true),
                                                with("local", "leap", true),      with("latte", "softmax", true)};
const std::vector<SpeechModel> bidirectional_models = {
    with("softmax", "softmax", false), with("cosformer", "linear", false), with("nystromformer", "cosformer", false),
    with("s4d", "efficient", false)};

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
        forward_speech(*model, RawSource::samples(batch.data(), 3000, 5, lens.data()), targets);
    const size_t width = target.size() * static_cast<size_t>(model->outputs());
    for (size_t b = 0; b < lengths.size(); ++b) {
      const std::vector<float> alone =
          forward_speech(*model, RawSource::samples(batch.data() + b * 3000, static_cast<int64_t>(lengths[b])), target);
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

// What reads complete the same rows together gives the same bits, however the samples came; other splits of the rows
// agree as the mechanisms' own do.
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
  const RawSource all = samples_of(samples);
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

TEST(Speech, ClonesAndSavedSessionsGoOnInTheMiddleOfARow) {
  const std::vector<float> samples = speech(3000);
  const RawSource all = samples_of(samples);
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

// With an honest checksum what is behind it is looked at: no blob makes a session that contradicts itself.
TEST(Speech, SavedSpeechThatContradictsItselfIsRefused) {
  const auto model = load(SpeechModel());
  const std::vector<float> samples = speech(1000);
  Session session(model, 1);
  session.read(samples_of(samples), false);
  const std::vector<std::byte> honest = session.save();
  const std::string text(reinterpret_cast<const char*>(honest.data()), honest.size());
  const size_t section = text.find("SPCH") + 16;
  ASSERT_LT(section, text.size());
  const auto refused = [&](size_t at, uint32_t value) {
    std::vector<std::byte> blob = honest;
    std::memcpy(blob.data() + section + at, &value, sizeof value);
    const std::span<std::byte> all(blob);
    const Digest digest = sha256(all.first(blob.size() - sizeof(Digest)));
    std::copy(digest.begin(), digest.end(), blob.end() - sizeof(Digest));
    EXPECT_THROW(Session::load(model, blob), Error) << at << " " << value;
  };
  for (const uint32_t kind : {0u, 1u, 3u, 4u, 0xFFFFFFFFu}) refused(0, kind);
  for (const uint32_t units : {0u, 999u, 1001u, 2000u, 0xFFFFFFFFu}) refused(4, units);
  refused(8, 0xFFFFFFFFu);  // units, upper half
  refused(12, 1);           // numbers of rows of the front end, which a causal encoder does not keep
  refused(20, 0);           // samples that wait
  refused(20, 0x7FFFFFFFu);
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
  const RawSource all = samples_of(samples);
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
  expect_refused([&] { session.read(frames_of(frames), true); }, "came as samples so far, and now come frames");
  expect_refused([&] { session.read(ids_of({3, 4}), true); }, "this model takes speech: f32 samples");
  expect_refused([&] { session.read(RawSource(), true); }, "one row of at least one sample or frame");
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
  expect_refused([&] { empty.read(RawSource::frames(frames.data(), 4, 7), true); },
                 "frames of 7 numbers, this model's have 8");
  expect_refused([&] { written(empty); }, "no source was read yet");
  expect_refused([&] { of_text.read(all, true); }, "this model takes text: int32 ids (rows, length), not f32 samples");
  expect_refused([&] { forward_speech(*text, all, {1}); }, "this model takes text");
  expect_refused([&] { model->forward(ids_of({3}), ids_of({1}), nullptr); }, "this model takes speech");
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

struct Observed {
  std::vector<int64_t> reads;
  attnkit_stream_options options(int64_t k) {
    k_ = k;
    attnkit_stream_options o{};
    o.struct_size = sizeof o;
    o.limit = 12;
    o.decide = [](uintptr_t self, const attnkit_stream_view* v) {
      return v->ended || v->read >= v->written + reinterpret_cast<Observed*>(self)->k_ ? ATTNKIT_WRITE : ATTNKIT_READ;
    };
    o.observe = [](uintptr_t self, const attnkit_stream_event* e) {
      reinterpret_cast<Observed*>(self)->reads.push_back(e->read);
    };
    o.decide_context = o.observe_context = reinterpret_cast<uintptr_t>(this);
    return o;
  }

 private:
  int64_t k_ = 0;
};

TEST(Speech, SimulationReadsRowByRow) {
  for (const SpeechModel& from : causal_models) {
    const auto model = load(from);
    const std::vector<float> samples = speech(2500), frames = features(*model, samples);
    const int64_t rows = model->source_rows(samples_of(samples));
    Observed host, of_frames, by_hand, offline;
    Session one(model, 1), two(model, 1), three(model, 1), four(model, 1), whole(model, 1);
    const auto made = simulate(one, {samples_of(samples), {}}, host.options(2));
    EXPECT_EQ(*std::max_element(host.reads.begin(), host.reads.end()), std::min<int64_t>(rows, 13));
    EXPECT_EQ(made, simulate(two, {frames_of(frames), {}}, of_frames.options(2)));
    std::vector<int64_t> ends;
    for (int64_t row = 0; row < rows; ++row) ends.push_back(first_row + row * 4 * 80);
    ends.back() = 2500;
    EXPECT_EQ(made, simulate(three, {samples_of(samples), ends}, by_hand.options(2)));
    EXPECT_EQ(host.reads, by_hand.reads);
    whole.read(samples_of(samples), true);
    EXPECT_EQ(simulate(four, {samples_of(samples), {}}, offline.options(INT64_MAX / 2)), whole.generate(12));
  }
}

TEST(Speech, SimulationRefusesBeforeItBegins) {
  const auto model = load(SpeechModel());
  const std::vector<float> samples = speech(2500);
  Session session(model, 1);
  Observed host;
  const auto options = host.options(1);
  expect_refused(
      [&] {
        simulate(session, {samples_of(samples).part(0, 439), {}}, options);
      },
      "439 samples are less than the 440");
  const std::vector<int64_t> short_ends = {2499}, early = {100, 2500};
  expect_refused(
      [&] {
        simulate(session, {samples_of(samples), short_ends}, options);
      },
      "the last unit ends at 2499, the source has 2500 samples");
  expect_refused([&] { simulate(session, {ids_of({3, 4}), {}}, options); }, "this model takes speech");
  EXPECT_EQ(session.source().reads, 0);
  expect_refused(
      [&] {
        simulate(session, {samples_of(samples), early}, options);
      },
      "100 samples are less than the 440 that the first row of the encoder needs");
  expect_refused([&] { simulate(session, {samples_of(samples), {}}, options); }, "the session was used already");
}

TEST(Speech, IsDescribed) {
  SpeechModel from;
  from.causal = false;
  const auto model = load(from);
  const std::string described = describe_model(*model, {64});
  for (const char* part : {"\"speech\":{\"features\":{\"type\":\"fbank\",\"sample_rate\":8000,\"bins\":8",
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

}  // namespace
}  // namespace attnkit::test
