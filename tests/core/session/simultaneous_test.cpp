#include "core/session/simultaneous.hpp"

#include <algorithm>
#include <functional>
#include <string>

#include "core/base/error.hpp"
#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

constexpr int32_t begin = 1, end = 2;

// Writes down what it is asked for; gives one token after the other.
struct Fake {
  explicit Fake(std::vector<int32_t> given) : target(std::move(given)) {}
  Incremental incremental() {
    return {[this](const SourceBatch& more, bool last) {
              calls += "r";
              for (int64_t i = 0; i < more.length; ++i) calls += std::to_string(more.ids[i]);
              if (last) calls += ".";
            },
            [this](int32_t token) {
              calls += "w" + std::to_string(token);
              return target[written++];
            }};
  }
  std::string calls;
  std::vector<int32_t> target;
  size_t written = 0;
};

struct Host {
  std::function<uint32_t(const attnkit_stream_view&)> answer;
  std::vector<attnkit_stream_view> asked = {};
  std::vector<attnkit_stream_event> events = {};

  attnkit_stream_options options() {
    attnkit_stream_options o{};
    o.struct_size = sizeof o;
    o.decide = [](uintptr_t self, const attnkit_stream_view* view) {
      Host& host = *reinterpret_cast<Host*>(self);
      host.asked.push_back(*view);
      return host.answer(*view);
    };
    o.observe = [](uintptr_t self, const attnkit_stream_event* event) {
      reinterpret_cast<Host*>(self)->events.push_back(*event);
    };
    o.decide_context = o.observe_context = reinterpret_cast<uintptr_t>(this);
    return o;
  }
  std::string actions() const {
    std::string all;
    for (const attnkit_stream_event& e : events) all += e.action == ATTNKIT_READ ? 'R' : 'W';
    return all;
  }
};

const std::vector<int32_t> source = {3, 4, 5, 6, 7, end};

uint32_t wait_2(const attnkit_stream_view& v) { return v.read >= v.written + 2 ? ATTNKIT_WRITE : ATTNKIT_READ; }

TEST(Simultaneous, ReadsAndWritesInTurn) {
  Fake fake({8, 9, 8, end});
  Host host{wait_2};
  EXPECT_EQ(simulate(fake.incremental(), {ids_of(source), {}}, {begin, end, 20}, host.options()),
            (std::vector<int32_t>{8, 9, 8, end}));
  EXPECT_EQ(fake.calls, "r34w1r5w8r6w9r7w8");
  EXPECT_EQ(host.actions(), "RRWRWRWRW");
  EXPECT_EQ(host.asked.size(), host.events.size());
}

TEST(Simultaneous, TheEndComesWithTheLastUnit) {
  Fake fake({8, 9, 8, 9, 8, end});
  Host host{wait_2};
  simulate(fake.incremental(), {ids_of(source), {}}, {begin, end, 20}, host.options());
  EXPECT_EQ(fake.calls, "r34w1r5w8r6w9r7w8r2.w9w8");
  EXPECT_EQ(host.actions(), "RRWRWRWRWRWW");
  for (const attnkit_stream_event& e : host.events) EXPECT_EQ(e.ended, e.read == 6);
}

TEST(Simultaneous, UnitsOfSeveralTokensArriveTogether) {
  const std::vector<int64_t> ends = {2, 3, 6};
  Fake fake({8, 9, end});
  Host host{[](const attnkit_stream_view& v) { return v.read > v.written ? ATTNKIT_WRITE : ATTNKIT_READ; }};
  simulate(fake.incremental(), {ids_of(source), ends}, {begin, end, 20}, host.options());
  EXPECT_EQ(fake.calls, "r34w1r5w8r672.w9");
  EXPECT_EQ(host.actions(), "RWRWRW");
}

// The policy is told where things stand before anything of the action has happened.
TEST(Simultaneous, ViewsAndEventsSayWhereThingsStand) {
  Fake fake({8, end});
  Host host{wait_2};
  simulate(fake.incremental(), {ids_of(source), {}}, {begin, end, 20}, host.options());
  double before = 0;
  for (size_t i = 0; i < host.events.size(); ++i) {
    const attnkit_stream_view& view = host.asked[i];
    const attnkit_stream_event& event = host.events[i];
    const bool reads = event.action == ATTNKIT_READ;
    EXPECT_EQ(view.struct_size, sizeof view);
    EXPECT_EQ(event.struct_size, sizeof event);
    EXPECT_EQ(event.read, view.read + reads);
    EXPECT_EQ(event.written, view.written + !reads);
    EXPECT_GE(event.seconds, before);
    before = event.seconds;
    EXPECT_EQ(event.id == -1, reads);
  }
  EXPECT_EQ(host.events.back().id, end);
}

// Nothing is left to read after the end, so whoever wants to read on writes.
TEST(Simultaneous, APolicyThatNeverWritesBecomesOffline) {
  Fake fake({8, 9, end});
  Host host{[](const attnkit_stream_view&) { return ATTNKIT_READ; }};
  simulate(fake.incremental(), {ids_of(source), {}}, {begin, end, 20}, host.options());
  EXPECT_EQ(fake.calls, "r345672.w1w8w9");
  EXPECT_EQ(host.actions(), "RRRRRRWWW");
}

TEST(Simultaneous, APolicyThatNeverReadsIsRefused) {
  Fake fake({8, 9, end});
  Host host{[](const attnkit_stream_view&) { return ATTNKIT_WRITE; }};
  try {
    simulate(fake.incremental(), {ids_of(source), {}}, {begin, end, 20}, host.options());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ATTN_INVALID);
    EXPECT_NE(std::string(e.what()).find("must read first"), std::string::npos);
  }
  EXPECT_EQ(fake.calls, "");
}

TEST(Simultaneous, APolicyThatStopsReadingEndsAtTheLimit) {
  Fake fake({8, 9, 8, 9, 8, 9, 8, 9});
  Host host{[](const attnkit_stream_view& v) { return v.read < 1 ? ATTNKIT_READ : ATTNKIT_WRITE; }};
  EXPECT_EQ(simulate(fake.incremental(), {ids_of(source), {}}, {begin, end, 5}, host.options()).size(), 5u);
  EXPECT_EQ(host.actions(), "RWWWWW");
}

TEST(Simultaneous, StopsWhenAsked) {
  Fake fake({8, 9, 8, end});
  Host host{[](const attnkit_stream_view& v) { return v.written == 2 ? ATTNKIT_STOP : wait_2(v); }};
  EXPECT_EQ(simulate(fake.incremental(), {ids_of(source), {}}, {begin, end, 20}, host.options()),
            (std::vector<int32_t>{8, 9}));
}

TEST(Simultaneous, RefusesAnswersThatAreNone) {
  for (const uint32_t answer : {0u, 4u, 4000000000u}) {
    Fake fake({8, end});
    Host host{[&](const attnkit_stream_view&) { return answer; }};
    EXPECT_THROW(simulate(fake.incremental(), {ids_of(source), {}}, {begin, end, 20}, host.options()), Error);
  }
}

TEST(Simultaneous, NobodyNeedsToWatch) {
  Fake fake({8, end});
  Host host{wait_2};
  attnkit_stream_options options = host.options();
  options.observe = nullptr;
  EXPECT_EQ(simulate(fake.incremental(), {ids_of(source), {}}, {begin, end, 20}, options).size(), 2u);
}

TEST(Simultaneous, UnitsMustAscendToTheEnd) {
  check_units({ids_of(source), {}});
  for (const std::vector<int64_t>& ends : std::vector<std::vector<int64_t>>{{6}, {1, 6}, {1, 2, 3, 4, 5, 6}})
    check_units({ids_of(source), ends});
  for (const std::vector<int64_t>& ends :
       std::vector<std::vector<int64_t>>{{5}, {7}, {0, 6}, {3, 3, 6}, {4, 2, 6}, {-1, 6}, {6, 7}, {INT64_MAX}})
    EXPECT_THROW(check_units({ids_of(source), ends}), Error);
  EXPECT_THROW(check_units({{}, {}}), Error);
}

uint32_t offline(const attnkit_stream_view& v) { return v.ended ? ATTNKIT_WRITE : ATTNKIT_READ; }

TEST(Simultaneous, OfflineIsWhatGenerateGives) {
  const auto model = load(TinyModel());
  Session whole(model, 1), streamed(model, 1);
  whole.read(ids_of(source));
  Host host{offline};
  attnkit_stream_options options = host.options();
  EXPECT_EQ(simulate(streamed, {ids_of(source), {}}, options), whole.generate(0));
  options.limit = 3;
  Session limited(model, 1);
  EXPECT_LE(simulate(limited, {ids_of(source), {}}, options).size(), 3u);
}

TEST(Simultaneous, TheSessionGoesOnOnceItHasTheLastToken) {
  const auto model = load(TinyModel());
  Session whole(model, 1), streamed(model, 1);
  whole.read(ids_of(source));
  Host host{offline};
  attnkit_stream_options options = host.options();
  options.limit = 3;
  std::vector<int32_t> made = simulate(streamed, {ids_of(source), {}}, options);
  EXPECT_EQ(streamed.position(0), 3) << "<s> and two of three tokens";
  Session* const self = &streamed;
  Session::write({&self, 1}, {&made.back(), 1, 1, 1, nullptr}, nullptr);
  const std::vector<int32_t> rest = streamed.generate(5);
  made.insert(made.end(), rest.begin(), rest.end());
  EXPECT_EQ(made, whole.generate(8));
}

TEST(Simultaneous, TokensAreNotRepeatedWhereTheManifestSaysSo) {
  std::vector<std::vector<int32_t>> made;
  for (const char* rule : {"", "[decode]\nno_repeat = 1\n", "[decode]\nrepetition_penalty = 2\n"}) {
    TinyModel tiny;
    tiny.tail = rule;
    const auto model = load(tiny);
    Session whole(model, 1), streamed(model, 1);
    whole.read(ids_of(source));
    Host host{offline};
    const attnkit_stream_options options = host.options();
    made.push_back(simulate(streamed, {ids_of(source), {}}, options));
    EXPECT_EQ(made.back(), whole.generate(0)) << rule;
  }
  EXPECT_NE(made[0], made[1]);
}

// Against the same turns taken by hand, bit for bit as far as the tokens show.
TEST(Simultaneous, ReadsASourceThatGrows) {
  TinyModel tiny;
  tiny.tail = "[stream]\n";
  const auto model = load(tiny);
  Session streamed(model, 1), by_hand(model, 1);
  Host host{wait_2};
  const std::vector<int32_t> made = simulate(streamed, {ids_of(source), {}}, host.options());
  Session* const self = &by_hand;
  int32_t next = model->vocabulary(true)->begin_id();
  size_t read = 0;
  for (size_t i = 0; i < made.size(); ++i) {
    const size_t to = std::min(i + 2, source.size());
    if (to > read) by_hand.read(ids_of({source.begin() + read, source.begin() + to}), to == source.size());
    read = to;
    Session::write({&self, 1}, {&next, 1, 1, 1, nullptr}, nullptr);
    const float* scores = by_hand.last(0);
    next = static_cast<int32_t>(std::max_element(scores, scores + model->outputs()) - scores);
    ASSERT_EQ(next, made[i]);
  }
  EXPECT_EQ(streamed.source_length(), static_cast<int64_t>(read));
}

TEST(Simultaneous, ASourceThatGrowsNeedsStream) {
  const auto model = load(TinyModel());
  Session session(model, 1);
  Host host{wait_2};
  EXPECT_THROW(simulate(session, {ids_of(source), {}}, host.options()), Error);
  EXPECT_EQ(host.actions(), "RR") << "refused when the first part was handed on";
}

TEST(Simultaneous, SessionsMustBeEmptyWithOneRowAndAKnownSource) {
  const auto model = load(TinyModel());
  Host host{offline};
  Session beams(model, 2), used(model, 1), fresh(model, 1);
  used.read(ids_of(source));
  const std::vector<int32_t> foreign = {3, 4, 99, end};
  EXPECT_THROW(simulate(beams, {ids_of(source), {}}, host.options()), Error);
  EXPECT_THROW(simulate(used, {ids_of(source), {}}, host.options()), Error);
  EXPECT_THROW(simulate(fresh, {ids_of(foreign), {}}, host.options()), Error);
  EXPECT_TRUE(host.asked.empty()) << "refused before anything happened";
  EXPECT_FALSE(simulate(fresh, {ids_of(source), {}}, host.options()).empty()) << "still usable";
}

}  // namespace
}  // namespace attnkit::test
