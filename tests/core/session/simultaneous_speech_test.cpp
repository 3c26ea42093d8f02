// Simultaneous decoding of speech.
#include "core/session/simultaneous.hpp"
#include "tests/core/speech/speech_model.hpp"

namespace attnkit::test {
namespace {

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

}  // namespace
}  // namespace attnkit::test
