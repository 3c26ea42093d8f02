// Speech through attnkit.h and attnkit.hpp: shapes, types, what is told of it and what is refused.
#include <gtest/gtest.h>

#include <attnkit/attnkit.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace {

struct Opened {
  attnkit::Runtime runtime{1};
  attnkit::Model model{runtime, manifest(), ATTNKIT_MODEL};
  attnkit::Model text{runtime, ATTNKIT_MODEL "/model.toml"};

  static std::string manifest() {
    return "schema = \"attnkit.model/1\"\n[model]\nname = \"speech\"\nkind = \"encoder-decoder\"\nd_model = 16\n"
           "heads = 2\nffn = 24\nmax_length = 64\n"
           "encoder = { layers = 1, causal = true, features = { type = \"fbank\", sample_rate = 8000, bins = 8 }, "
           "frontend = { type = \"conv\" } }\n"
           "decoder = { layers = 1, vocab = \"vocab.txt\" }\n"
           "[weights]\nseed = 1\n[attention]\ndefault = \"softmax\"\n[stream]\n";
  }
};

std::vector<float> tone(size_t n) {
  std::vector<float> samples(n);
  for (size_t i = 0; i < n; ++i)
    samples[i] = 0.4f * std::sin(0.3f * static_cast<float>(i)) * std::sin(0.002f * static_cast<float>(i));
  return samples;
}

attnkit::SpeechBatch batch_of(const std::vector<float>& row, int64_t bins = 0) {
  return attnkit::SpeechBatch(std::vector<std::vector<float>>{row}, bins);
}

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const attnkit::Error& e) {
    EXPECT_EQ(e.code(), ATTN_INVALID) << e.what();
    return e.what();
  }
  return "";
}

void expect_refused(const std::string& said, const std::string& part) {
  EXPECT_NE(said.find(part), std::string::npos) << "no \"" << part << "\" in: " << said;
}

std::vector<float> forward(const attnkit::Model& model, const attnkit::SpeechBatch& source,
                           const attnkit::Batch& target) {
  const int64_t outputs = model.info().outputs;
  std::vector<float> out(static_cast<size_t>(target.rows() * target.length * outputs));
  model.forward(source, target, attnkit::tensor(out.data(), {target.rows(), target.length, outputs}));
  return out;
}

TEST(Speech, ModelsSayWhatTheyTake) {
  const Opened o;
  const attnkit_model_info info = o.model.info(), text = o.text.info();
  EXPECT_EQ(info.sample_rate, 8000);
  EXPECT_EQ(info.frame_length, 200);
  EXPECT_EQ(info.frame_shift, 80);
  EXPECT_EQ(info.features, 8);
  EXPECT_EQ(info.subsampling, 4);
  EXPECT_EQ(info.source_vocab, 0);
  EXPECT_GT(info.target_vocab, 0);
  EXPECT_EQ(text.sample_rate + text.frame_length + text.frame_shift + text.features + text.subsampling, 0);
}

TEST(Speech, HostsOfTheFirstHeaderGetWhatTheyAskedFor) {
  const Opened o;
  attnkit_model_info info{};
  info.struct_size = 56;
  info.sample_rate = -7;
  ASSERT_EQ(attnkit_model_get_info(o.model.get(), &info, nullptr), ATTN_OK);
  EXPECT_GT(info.parameters, 0u);
  EXPECT_EQ(info.sample_rate, -7);
}

TEST(Speech, SamplesFramesBatchesAndEncodedAgree) {
  const Opened o;
  const std::vector<float> one = tone(3000), two = tone(1500);
  const attnkit::Batch target(std::vector<attnkit::Ids>{{1, 5, 6}, {1, 7}}),
      first(std::vector<attnkit::Ids>{{1, 5, 6}});
  const std::vector<float> both = forward(o.model, attnkit::SpeechBatch(std::vector{one, two}), target);
  const std::vector<float> alone = forward(o.model, batch_of(one), first);
  EXPECT_EQ(alone, std::vector<float>(both.begin(), both.begin() + static_cast<std::ptrdiff_t>(alone.size())));
  const std::vector<float> frames = o.model.features(one);
  EXPECT_EQ(frames.size(), static_cast<size_t>(((3000 - 200) / 80 + 1) * 8));
  EXPECT_EQ(alone, forward(o.model, batch_of(frames, 8), first));
  const attnkit::Encoded encoded = o.model.encode(batch_of(one));
  std::vector<float> decoded(alone.size());
  o.model.decode(encoded, first, attnkit::tensor(decoded.data(), {1, 3, o.model.info().outputs}));
  EXPECT_EQ(alone, decoded);
}

TEST(Speech, AttentionHasTheRowsOfTheEncoder) {
  const Opened o;
  const std::vector<float> samples = tone(3000);
  const int64_t rows = ((3000 - 200) / 80 + 1) / 4;
  const attnkit::Ids ids = {1, 5, 6};
  const attn_tensor source = attnkit::tensor(samples.data(), {1, 3000}), target = attnkit::tensor(ids.data(), {1, 3});
  std::vector<float> weights(static_cast<size_t>(2 * 3 * rows));
  const attn_tensor out = attnkit::tensor(weights.data(), {2, 3, rows});
  ASSERT_EQ(attnkit_model_attention(o.model.get(), ATTN_DECODER_CROSS, 1, &source, &target, &out, nullptr), ATTN_OK);
  for (size_t i = 0; i < weights.size(); i += static_cast<size_t>(rows)) {
    float sum = 0;
    for (size_t j = 0; j < static_cast<size_t>(rows); ++j) sum += weights[i + j];
    EXPECT_NEAR(sum, 1, 1e-5);
  }
}

TEST(Speech, SessionsReadSimulateAndTranslate) {
  const Opened o;
  const std::vector<float> samples = tone(3000);
  attnkit::Session whole(o.model, 1), pieces(o.model, 1), frames(o.model, 1), simulated(o.model, 1);
  whole.read(samples);
  for (size_t i = 0; i < samples.size(); i += 500)
    pieces.read(std::span(samples).subspan(i, std::min<size_t>(500, samples.size() - i)), false);
  EXPECT_NE(pieces.describe().find("\"unit\":\"samples\",\"read\":3000"), std::string::npos) << pieces.describe();
  pieces.read(std::vector<float>(), true);
  frames.read(batch_of(o.model.features(samples), 8));
  const attnkit::Ids expected = whole.generate(10);
  EXPECT_EQ(expected, pieces.generate(10));
  EXPECT_EQ(expected, frames.generate(10));
  int64_t units = 0;
  const auto offline = [&](const attnkit_stream_view& v) { return v.ended ? ATTNKIT_WRITE : ATTNKIT_READ; };
  const auto watch = [&](const attnkit_stream_event& e) { units = e.read; };
  EXPECT_EQ(expected, simulated.simulate(samples, {}, offline, watch, 10));
  EXPECT_EQ(units, ((3000 - 200) / 80 + 1) / 4);
  EXPECT_EQ(o.model.translate(samples, 1, 10), o.model.detokenize(attnkit::Side::target, expected));
}

TEST(Speech, WhatTheModelDoesNotTakeIsRefusedInWords) {
  const Opened o;
  const std::vector<float> samples = tone(3000);
  attnkit::Session speech(o.model, 1), text(o.text, 1);
  expect_refused(refusal([&] { speech.read(attnkit::Ids{3, 4}); }), "this model takes speech");
  expect_refused(refusal([&] { text.read(samples); }), "this model takes text");
  expect_refused(refusal([&] { o.model.tokenize(attnkit::Side::source, "five"); }), "is speech, not text");
  expect_refused(refusal([&] { o.model.detokenize(attnkit::Side::source, attnkit::Ids{3}); }), "is speech, not text");
  expect_refused(refusal([&] { o.model.translate("five"); }), "is speech, not text");
  expect_refused(refusal([&] { o.text.features(samples); }), "takes text, not speech");
  expect_refused(refusal([&] { speech.read(tone(439)); }), "439 samples are less than the 440");
  expect_refused(refusal([&] { speech.read(batch_of(std::vector<float>(28), 7)); }), "frames of 7 numbers");
  expect_refused(refusal([&] { batch_of(std::vector<float>(27), 7); }), "27 numbers do not make whole frames of 7");
  std::vector<float> wrong = samples;
  wrong[17] = 20;
  expect_refused(refusal([&] { o.model.features(wrong); }), "sample 17: 20 is beyond 16");
  EXPECT_EQ(o.model.features(tone(199)).size(), 0u);
}

TEST(Speech, NoFramesNeedNoMemory) {
  const Opened o;
  const std::vector<float> samples = tone(100);
  attn_error err{sizeof err, 0, -1, ""};
  uint64_t n = 1;
  const attn_tensor in = attnkit::tensor(samples.data(), {1, 100}),
                    none = attnkit::tensor(static_cast<const float*>(nullptr), {1, 0, 8});
  EXPECT_EQ(attnkit_model_features(o.model.get(), &in, &none, &n, &err), ATTN_OK) << err.message;
  EXPECT_EQ(n, 0u);
}

TEST(Speech, AnEmptyLastPartMayLieAnywhere) {
  const Opened o;
  const std::vector<float> samples = tone(3000);
  attnkit::Session session(o.model, 1);
  attn_error err{sizeof err, 0, -1, ""};
  const attn_tensor first = attnkit::tensor(samples.data(), {1, 3000});
  attn_tensor last = attnkit::tensor(samples.data(), {1, 0});
  last.data = reinterpret_cast<std::byte*>(last.data) + 1;
  EXPECT_EQ(attnkit_session_read(session.get(), &first, 0, &err), ATTN_OK) << err.message;
  EXPECT_EQ(attnkit_session_read(session.get(), &last, 1, &err), ATTN_OK) << err.message;
}

TEST(Speech, TensorsOfAnotherFormAreRefused) {
  const Opened o;
  const std::vector<float> samples = tone(3000);
  const std::vector<double> doubles(3000);
  attnkit::Session session(o.model, 1);
  attn_error err{sizeof err, 0, -1, ""};
  const auto read = [&](const attn_tensor& t) {
    EXPECT_EQ(attnkit_session_read(session.get(), &t, 1, &err), ATTN_INVALID);
    return std::string(err.message);
  };
  expect_refused(read(attnkit::tensor(doubles.data(), {1, 3000})), "not numbers of type 2:64");
  expect_refused(read(attnkit::tensor(samples.data(), {3000})), "contiguous float32 tensor");
  expect_refused(read(attnkit::tensor(samples.data(), {1, 1, 1, 3000})), "contiguous float32 tensor");
  expect_refused(read(attnkit::tensor(samples.data(), {2, 1500})), "one row of at least one sample or frame");
  expect_refused(read(attnkit::tensor(samples.data(), {1, -3000})), "contiguous float32 tensor");
  expect_refused(read(attnkit::tensor(samples.data(), {1, std::numeric_limits<int64_t>::max()})), "contiguous float32");
  expect_refused(read(attnkit::tensor(static_cast<const float*>(nullptr), {1, 3000})), "contiguous float32");
  attn_tensor strided = attnkit::tensor(samples.data(), {1, 1500});
  strided.stride[1] = 2;
  expect_refused(read(strided), "contiguous float32");
  attn_tensor elsewhere = attnkit::tensor(samples.data(), {1, 3000});
  elsewhere.device_type = 2;
  expect_refused(read(elsewhere), "on the CPU");
  EXPECT_EQ(attnkit_session_read(session.get(), nullptr, 1, &err), ATTN_INVALID);
  const std::vector<float> frames = o.model.features(samples);
  uint64_t n = 0;
  std::vector<float> room(frames.size());
  const attn_tensor in = attnkit::tensor(samples.data(), {1, 3000}), small = attnkit::tensor(room.data(), {1, 35, 8});
  EXPECT_EQ(attnkit_model_features(o.model.get(), &in, &small, &n, &err), ATTN_INVALID);
  expect_refused(err.message, "shape 1x36x8");
  const attn_tensor of_frames = attnkit::tensor(frames.data(), {1, 36, 8});
  EXPECT_EQ(attnkit_model_features(o.model.get(), &of_frames, nullptr, &n, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_model_features(o.model.get(), nullptr, nullptr, &n, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_model_features(nullptr, &in, nullptr, &n, &err), ATTN_INVALID);
  EXPECT_EQ(n, 0u);
  session.read(samples);
}

}  // namespace
