// Session::sample draws the tokens that a host draws which writes them one by one, as attnkit run does.
#include <gtest/gtest.h>

#include "core/base/decoding/sampler.hpp"
#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {
namespace {

std::vector<int32_t> by_hand(Session& session, std::vector<int32_t> prompt, Sampler sampler, size_t limit) {
  const auto outputs = static_cast<size_t>(session.model().outputs());
  const int32_t end = session.model().vocabulary(true)->end_id();
  std::vector<float> logits(outputs);
  Session* const self = &session;
  sampler.saw(prompt);
  const auto before = static_cast<int64_t>(prompt.size()) - 1;
  if (before > 0) Session::write({&self, 1}, {prompt.data(), before, 1, before, nullptr}, nullptr);
  std::vector<int32_t> made;
  for (int32_t next = prompt.back(); made.size() < limit && (made.empty() || made.back() != end); next = made.back()) {
    Session::write({&self, 1}, {&next, 1, 1, 1, nullptr}, logits.data());
    made.push_back(*sampler.draw(logits));
  }
  return made;
}

TEST(Sample, DrawsWhatWritingTokenByTokenDraws) {
  Sampling sampling;
  sampling.temperature = 1.4;
  sampling.repetition_penalty = 1.2;
  sampling.top_k = 8;
  sampling.top_p = 0.95;
  TinyModel language;
  language.kind = "decoder";
  language.encoder_layers = 0;
  const auto decoder = load(language), translator = load(TinyModel());
  for (uint64_t stream = 0; stream < 5; ++stream) {
    Session whole(decoder, 1), tokens(decoder, 1);
    Sampler sampler(sampling, stream);
    EXPECT_EQ(whole.sample(std::vector<int32_t>{1, 8, 9, 4}, sampler, 12, nullptr),
              by_hand(tokens, {1, 8, 9, 4}, Sampler(sampling, stream), 12));
    Session read(translator, 1), reads(translator, 1);
    for (Session* s : {&read, &reads}) s->read(ids_of({3, 4, 5, 6, 7, 2}));
    Sampler again(sampling, stream);
    EXPECT_EQ(read.sample({}, again, 12, nullptr),
              by_hand(reads, {translator->vocabulary(true)->begin_id()}, Sampler(sampling, stream), 12));
  }
}

// Under [stream] nothing follows </s>: the refusal comes before anything is written.
TEST(Sample, RefusesAPromptThatEndsAStreamedTarget) {
  const auto model = load(StreamModel());
  Session session(model, 1);
  session.read(ids_of({3, 4, 5, 6, 7, 2}));
  Sampler greedy(Sampling{});
  const auto sample = [&](const std::vector<int32_t>& prompt) { return session.sample(prompt, greedy, 4, nullptr); };
  EXPECT_NE(std::string::npos, refusal_of([&] { sample({1, 8, 2}); }).find("the prompt ends in </s>"));
  EXPECT_EQ(session.position(0), 0);
  EXPECT_FALSE(sample({1, 8}).empty());
  test::write({&session}, {2}, 1);
  EXPECT_NE(std::string::npos, refusal_of([&] { sample({}); }).find("the target ends in </s>"));

  StreamModel ends;
  ends.decoder_vocab = "\"vocab.txt\", more_ends = [9]";
  Session of_ends(load(ends), 1);
  of_ends.read(ids_of({3, 4, 5, 6, 7, 2}));
  EXPECT_NE(refusal_of([&] { of_ends.sample(std::vector<int32_t>{1, 8, 9}, greedy, 4, nullptr); }), "");
  EXPECT_EQ(of_ends.position(0), 0) << "nor after another end";

  const auto whole = load(TinyModel());
  Session other(whole, 1);
  other.read(ids_of({3, 4, 5, 6, 7, 2}));
  EXPECT_FALSE(other.sample(std::vector<int32_t>{1, 8, 2}, greedy, 4, nullptr).empty());
}

TEST(Sample, SaysWhereNoTokenMayCome) {
  TinyModel tiny;
  tiny.tail =
      "[decode]\nsuppress = [0, 1, 3, 4, 5, 6, 7, 8, 9, 10]\nmin_length = 6\n";  // </s> is left, and comes too early
  const auto model = load(tiny);
  for (const int beams : {1, 2}) {
    Session session(model, beams);
    session.read(ids_of({3, 4, 5, 6, 7, 2}));
    EXPECT_NE(refusal_of([&] { session.generate(0); }).find("no token may follow after"), std::string::npos) << beams;
  }
}

}  // namespace
}  // namespace attnkit::test
