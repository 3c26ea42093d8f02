// Sessions through attnkit.h: what core's own tests cannot see, namely arguments, handles and threads.
#include <gtest/gtest.h>

#include <attnkit/attnkit.hpp>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

const std::string path = ATTNKIT_MODEL "/model.toml";

struct Opened {
  attnkit::Runtime runtime{1};
  attnkit::Model model{runtime, path};
  attnkit::Ids source() const {
    attnkit::Ids ids = model.tokenize(attnkit::Side::source, "five euros ; the third of march");
    ids.push_back(model.info().end_id);
    return ids;
  }
};

TEST(Session, GeneratesWhatWritingTokenByTokenGives) {
  const Opened o;
  attnkit::Session generated(o.model, 1), written(o.model, 1), stepped(o.model, 1);
  for (attnkit::Session* session : {&generated, &written, &stepped}) session->read(o.source());
  const attnkit::Ids ids = generated.generate();
  const int64_t outputs = o.model.info().outputs;
  std::vector<float> logits(static_cast<size_t>(outputs)), same(logits);
  int32_t next = o.model.info().begin_id;
  for (int32_t expected : ids) {
    attnkit_session* const self = written.get();
    attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector<attnkit::Ids>{{next}}), logits.data(), outputs);
    stepped.step(next, same);
    ASSERT_EQ(same, logits);
    next = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    ASSERT_EQ(next, expected);
  }
  stepped.step(next);
  attnkit_session* const self = written.get();
  attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector<attnkit::Ids>{{}}), logits.data(), outputs);
  EXPECT_THROW(stepped.step(next, std::span(same).first(3)), attnkit::Error) << "room for three numbers";
}

TEST(Session, SurvivesItsModel) {
  auto o = std::make_unique<Opened>();
  attnkit::Session session(o->model, 1);
  const attnkit::Ids source = o->source();
  o.reset();
  session.read(source);
  EXPECT_FALSE(session.generate().empty());
}

TEST(Session, RefusesWrongUse) {
  const Opened o;
  attnkit::Session session(o.model, 1);
  attnkit_session* const self = session.get();
  attn_error err{sizeof err, 0, -1, ""};
  const attnkit::Ids source = o.source();
  const attn_tensor t = attnkit::tensor(source.data(), {1, static_cast<int64_t>(source.size())});
  EXPECT_EQ(attnkit_session_read(self, &t, 0, &err), ATTN_INVALID) << "a growing source";
  EXPECT_NE(std::string(err.message).find("[stream]"), std::string::npos) << err.message;
  EXPECT_EQ(attnkit_session_read(self, &t, 2, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_session_read(self, nullptr, 1, &err), ATTN_INVALID);
  EXPECT_THROW(attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector<attnkit::Ids>{{1}})), attnkit::Error)
      << "no source";
  session.read(source);
  attnkit_session* const twice[] = {self, self};
  EXPECT_THROW(attnkit::Session::write(twice, attnkit::Batch(std::vector<attnkit::Ids>{{1}, {1}})), attnkit::Error);
  EXPECT_THROW(attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector<attnkit::Ids>{{1}, {1}})), attnkit::Error)
      << "two rows for one";
  attnkit_session* const missing[] = {nullptr};
  EXPECT_THROW(attnkit::Session::write(missing, attnkit::Batch(std::vector<attnkit::Ids>{{1}})), attnkit::Error);
  EXPECT_THROW(session.set_length(-1), attnkit::Error);
  EXPECT_THROW(attnkit::Session(o.model, 1025), attnkit::Error);
  EXPECT_EQ(attnkit_session_reorder(self, nullptr, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_session_generate(self, 1, nullptr, nullptr, &err), ATTN_INVALID);
  EXPECT_FALSE(session.generate().empty()) << "still usable";
  attnkit_session_destroy(nullptr);
}

struct LanguageModel {
  attnkit::Runtime runtime{1};
  attnkit::Model model{runtime, ATTNKIT_MANIFESTS "/language-model.toml"};
  attnkit::Ids prompt = {1, 9, 5, 30, 5};
};

attnkit_sample_options sampling(double temperature, uint64_t seed, uint32_t limit = 12) {
  attnkit_sample_options options{};
  options.temperature = temperature;
  options.seed = seed;
  options.limit = limit;
  return options;
}

// A scheduler in small: sources are read together as they come, and sessions join and leave between steps.
TEST(Session, JoinAndLeaveBetweenSteps) {
  const Opened o;
  const std::vector<const char*> texts = {
      "five euros ; the third of march", "four", "half past three", "two euros", "the first of may", "ten"};
  std::vector<attnkit::Ids> sources, expected, made(texts.size());
  for (const char* text : texts) {
    sources.push_back(o.model.tokenize(attnkit::Side::source, text));
    sources.back().push_back(o.model.info().end_id);
    attnkit::Session alone(o.model, 1);
    alone.read(sources.back());
    expected.push_back(alone.generate());
  }
  struct Active {
    size_t index;
    attnkit::Session session;
    int32_t next;
  };
  std::vector<Active> active;
  const attnkit_model_info info = o.model.info();
  std::vector<float> logits;
  const auto handles = [&](size_t first) {
    std::vector<attnkit_session*> all;
    for (size_t i = first; i < active.size(); ++i) all.push_back(active[i].session.get());
    return all;
  };
  for (size_t next = 0; next < texts.size() || !active.empty();) {
    const size_t before = active.size();
    std::vector<attnkit::Ids> coming;
    for (; next < texts.size() && active.size() < 3; ++next) {
      active.push_back({next, attnkit::Session(o.model, 1), info.begin_id});
      coming.push_back(sources[next]);
    }
    if (!coming.empty()) attnkit::Session::read_all(handles(before), attnkit::Batch(coming));
    std::vector<attnkit::Ids> tokens;
    for (const Active& a : active) tokens.push_back({a.next});
    logits.resize(active.size() * static_cast<size_t>(info.outputs));
    attnkit::Session::write(handles(0), attnkit::Batch(tokens), logits.data(), info.outputs);
    for (size_t i = 0; i < active.size(); ++i) {
      const auto scores = logits.begin() + static_cast<std::ptrdiff_t>(i) * info.outputs;
      active[i].next = static_cast<int32_t>(std::max_element(scores, scores + info.outputs) - scores);
      made[active[i].index].push_back(active[i].next);
    }
    std::erase_if(active, [&](const Active& a) { return a.next == info.end_id; });
  }
  EXPECT_EQ(made, expected);
}

// Sessions of one row and of several beams, which come and go; steps of 0: until one has ended.
TEST(Session, GenerateTogetherWhatEachDoesAlone) {
  const Opened o;
  const std::vector<const char*> texts = {
      "five euros ; the third of march", "four", "half past three", "two euros", "the first of may", "ten", "one"};
  struct Active {
    size_t index;
    attnkit::Session session;
  };
  const auto session_of = [&](size_t i) {
    attnkit::Session session(o.model, 1 + static_cast<uint32_t>(i) % 4);
    attnkit::Ids source = o.model.tokenize(attnkit::Side::source, texts[i]);
    source.push_back(o.model.info().end_id);
    session.read(source);
    if (i % 4 == 1) session.generate(1);  // goes on in the middle of a text
    return session;
  };
  for (const uint32_t limit : {0u, 3u}) {
    std::vector<attnkit::Ids> expected;
    std::vector<std::vector<std::byte>> states, ends(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      attnkit::Session alone = session_of(i);
      expected.push_back(alone.generate(limit));
      states.push_back(alone.save());
    }
    for (const uint32_t steps : {0u, 1u, 3u}) {
      std::vector<attnkit::Ids> made(texts.size());
      std::vector<Active> active;
      for (size_t next = 0; next < texts.size() || !active.empty();) {
        if (next < texts.size()) {
          active.push_back({next, session_of(next)});
          ++next;
        }
        std::vector<attnkit_session*> handles;
        for (const Active& a : active) handles.push_back(a.session.get());
        const std::vector<attnkit::Ids> ended = attnkit::Session::generate_all(o.model, handles, limit, steps);
        for (size_t i = 0; i < active.size(); ++i) {
          made[active[i].index] = ended[i];
          if (!ended[i].empty()) ends[active[i].index] = active[i].session.save();
        }
        std::erase_if(active, [&](const Active& a) { return !made[a.index].empty(); });
        std::rotate(active.begin(), active.begin() + !active.empty(), active.end());
      }
      EXPECT_EQ(made, expected) << limit << " tokens, " << steps << " steps";
      EXPECT_EQ(ends, states) << limit << " tokens, " << steps << " steps";
    }
  }
}

TEST(Session, RoomIsForTheLimitOfTheFirstCall) {
  const Opened o;
  attnkit::Session session(o.model, 2);
  session.read(o.source());
  attnkit_session* const self = session.get();
  attnkit::Session::generate_all(o.model, {&self, 1}, 0, 3);
  attnkit::Ids ids(2);
  uint64_t length = 0;
  attn_error err{sizeof err, 0, -1, ""};
  EXPECT_EQ(attnkit_sessions_generate(&self, 1, 2, 0, ids.data(), 2, &length, &err), ATTN_INVALID);
  EXPECT_NE(std::string(err.message).find("room for 2 tokens"), std::string::npos) << err.message;
  EXPECT_FALSE(attnkit::Session::generate_all(o.model, {&self, 1}).front().empty());
  // More than any target has is no more than the longest.
  attnkit::Session other(o.model, 2);
  other.read(o.source());
  attnkit_session* const its = other.get();
  const auto width = static_cast<uint64_t>(o.model.info().max_length);
  ids.resize(width);
  for (const uint32_t steps : {2u, 0u})
    EXPECT_EQ(attnkit_sessions_generate(&its, 1, 1u << 20, steps, ids.data(), width, &length, &err), ATTN_OK);
  EXPECT_GT(length, 0u);
}

// A neighbour's error comes between the choice of a search and its write.
TEST(Session, AnErrorBesideASearchLeavesItsScoresWithItsRows) {
  const Opened o;
  attnkit::Session session(o.model, 3), same(o.model, 3), empty(o.model, 1);
  for (attnkit::Session* s : {&session, &same}) s->read(o.source());
  for (attnkit::Session* s : {&session, &same}) {
    attnkit_session* const self = s->get();
    attnkit::Session::generate_all(o.model, {&self, 1}, 0, 2);
  }
  attnkit_session* const both[] = {session.get(), empty.get()};
  EXPECT_THROW(attnkit::Session::generate_all(o.model, both), attnkit::Error);
  EXPECT_EQ(session.save(), same.save());
  EXPECT_EQ(session.clone().generate(), same.clone().generate());
}

TEST(Session, AWriteEndsWhatGenerateTogetherBegan) {
  const Opened o;
  attnkit::Session session(o.model, 3), same(o.model, 3);
  for (attnkit::Session* s : {&session, &same}) s->read(o.source());
  attnkit_session *const self = session.get(), *const other = same.get();
  for (attnkit_session* const* s : {&self, &other}) attnkit::Session::generate_all(o.model, {s, 1}, 0, 4);
  EXPECT_EQ(session.save(), same.save());
  attnkit::Session copy = session.clone();  // of its rows
  attnkit_session* const its = copy.get();
  for (attnkit_session* const* s : {&self, &its})
    attnkit::Session::write({s, 1}, attnkit::Batch(std::vector<attnkit::Ids>(3, {5})));
  EXPECT_EQ(attnkit::Session::generate_all(o.model, {&self, 1}, 5).front(), copy.generate(5));
  EXPECT_EQ(attnkit::Session::generate_all(o.model, {&other, 1}).front(), [&] {
    attnkit::Session whole(o.model, 3);
    whole.read(o.source());
    return whole.generate();
  }());
}

TEST(Session, RefusesToGenerateTogetherInWordsAndLosesNothing) {
  const Opened o;
  attnkit::Session one(o.model, 2), empty(o.model, 1), alone(o.model, 2);
  for (attnkit::Session* s : {&one, &alone}) s->read(o.source());
  const attnkit::Model model(o.runtime, path);
  attnkit::Session foreign(model, 1);
  attnkit_session *const both[] = {one.get(), empty.get()}, *const twice[] = {one.get(), one.get()};
  attnkit_session *const others[] = {one.get(), foreign.get()}, *const missing[] = {one.get(), nullptr};
  const auto width = static_cast<uint64_t>(o.model.info().max_length);
  attnkit::Ids ids(2 * width);
  uint64_t lengths[2] = {7, 7};
  attn_error err{sizeof err, 0, -1, ""};
  const auto refused = [&](attnkit_session* const* sessions, uint32_t n, uint32_t limit, uint64_t room) {
    EXPECT_EQ(attnkit_sessions_generate(sessions, n, limit, 2, ids.data(), room, lengths, &err), ATTN_INVALID);
    return std::string(err.message);
  };
  EXPECT_EQ(refused(both, 0, 0, width), "no sessions: give at least one");
  EXPECT_NE(refused(missing, 2, 0, width).find("NULL"), std::string::npos) << err.message;
  EXPECT_NE(refused(twice, 2, 0, width).find("stands twice"), std::string::npos) << err.message;
  EXPECT_NE(refused(others, 2, 0, width).find("one model"), std::string::npos) << err.message;
  EXPECT_NE(refused(both, 2, 0, width - 1).find("width"), std::string::npos) << err.message;
  EXPECT_NE(refused(both, 2, 9, 8).find("width 8"), std::string::npos) << err.message;
  EXPECT_EQ(attnkit_sessions_generate(both, 1, 0, 2, nullptr, width, lengths, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_sessions_generate(both, 1, 0, 2, ids.data(), width, nullptr, &err), ATTN_INVALID);
  // In every call one goes no further, and the session beside it nothing at all.
  const auto before = one.save();
  for (int call = 0; call < 3; ++call)
    EXPECT_EQ(refused(both, 2, 0, width).find("session 1: no source was read yet"), 0u) << err.message;
  EXPECT_EQ(err.where, 1);
  EXPECT_EQ(one.save(), before);
  EXPECT_EQ(lengths[0], 7u);
  EXPECT_EQ(attnkit::Session::generate_all(o.model, {both, 1}).front(), alone.generate());
  empty.read(o.source());
  EXPECT_FALSE(attnkit::Session::generate_all(o.model, {both + 1, 1}).front().empty());
}

TEST(Session, RefusesWrongReadsOfMany) {
  const Opened o;
  attnkit::Session one(o.model, 1), two(o.model, 1);
  attnkit_session *const both[] = {one.get(), two.get()}, *const twice[] = {one.get(), one.get()};
  attnkit_session* const missing[] = {one.get(), nullptr};
  attn_error err{sizeof err, 0, -1, ""};
  const attnkit::Batch sources(std::vector<attnkit::Ids>{o.source(), o.source()});
  const attn_tensor t = sources.view();
  const uint32_t wrong[] = {1, 2};
  EXPECT_EQ(attnkit_sessions_read(nullptr, 2, &t, nullptr, nullptr, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_sessions_read(both, 0, &t, nullptr, nullptr, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_sessions_read(both, 2, nullptr, nullptr, nullptr, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_sessions_read(missing, 2, &t, nullptr, nullptr, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_sessions_read(twice, 2, &t, nullptr, nullptr, &err), ATTN_INVALID);
  EXPECT_NE(std::string(err.message).find("stands twice"), std::string::npos) << err.message;
  EXPECT_EQ(attnkit_sessions_read(both, 2, &t, nullptr, wrong, &err), ATTN_INVALID);
  EXPECT_NE(std::string(err.message).find("last of session 1 is 2"), std::string::npos) << err.message;
  EXPECT_THROW(attnkit::Session::read_all(std::span(both).first(1), sources), attnkit::Error);
  attnkit::Session::read_all(both, sources);
  EXPECT_EQ(one.generate(), two.generate());
}

attnkit::Model without_ends(const attnkit::Runtime& runtime) {
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  text.insert(text.find("vocab = ", text.find("encoder = {")), "end = false, ");
  return attnkit::Model(runtime, text, ATTNKIT_MODEL);
}

TEST(Session, SourcesWithoutAnEndAreReadWhole) {
  const attnkit::Runtime runtime(1);
  const attnkit::Model model = without_ends(runtime);
  const auto decide = [](const attnkit_stream_view&) { return ATTNKIT_READ; };
  try {
    attnkit::Session(model, 1).simulate(attnkit::Ids{3, 4}, {}, decide, [](const attnkit_stream_event&) {});
    ADD_FAILURE();
  } catch (const attnkit::Error& e) {
    EXPECT_EQ(e.code(), ATTN_UNSUPPORTED);
    EXPECT_NE(std::string(e.what()).find("end with no token"), std::string::npos) << e.what();
  }
}

TEST(Session, ASourceOfItsEndAloneNamesItsSession) {
  const attnkit::Runtime runtime(1);
  const attnkit::Model model = without_ends(runtime);
  attnkit::Session one(model, 1), two(model, 1);
  attnkit_session* const both[] = {one.get(), two.get()};
  const int32_t end = model.info().end_id, ids[] = {3, end, end, end}, lengths[] = {2, 1};
  const attn_tensor t = attnkit::tensor(ids, {2, 2});
  attn_error err{sizeof err, 0, -1, ""};
  EXPECT_EQ(attnkit_sessions_read(both, 2, &t, lengths, nullptr, &err), ATTN_INVALID);
  EXPECT_EQ(err.where, 1);
  EXPECT_NE(std::string(err.message).find("session 1: source: row 1 has no token"), std::string::npos) << err.message;
}

TEST(Sample, WithoutATemperatureIsGenerate) {
  const LanguageModel o;
  attnkit::Session generated(o.model, 1), sampled(o.model, 1), begun(o.model, 1);
  attnkit_session* const self = generated.get();
  // As sample splits a prompt.
  attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector<attnkit::Ids>{{1, 9, 5, 30}}));
  attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector<attnkit::Ids>{{5}}));
  const attnkit::Ids ids = generated.generate(12);
  EXPECT_EQ(sampled.sample(o.prompt, sampling(0, 7)), ids);
  EXPECT_EQ(sampled.sample({}, sampling(0, 7)), generated.generate(12)) << "goes on where it stands";
  EXPECT_EQ(begun.sample({}, sampling(0, 7)), attnkit::Session(o.model, 1).generate(12)) << "begins with <s>";
}

TEST(Sample, RepeatsItselfForASeedAndAStream) {
  const LanguageModel o;
  const auto draw = [&](attnkit_sample_options options) {
    return attnkit::Session(o.model, 1).sample(o.prompt, options);
  };
  const attnkit::Ids first = draw(sampling(1.5, 1));
  EXPECT_EQ(draw(sampling(1.5, 1)), first);
  EXPECT_NE(draw(sampling(1.5, 2)), first);
  attnkit_sample_options other = sampling(1.5, 1);
  other.stream = 1;
  EXPECT_NE(draw(other), first);
  other = sampling(1.5, 1);
  other.top_k = 1;
  EXPECT_EQ(draw(other), draw(sampling(0, 0)));
  other.top_k = 0;
  other.top_p = 1e-9;
  EXPECT_EQ(draw(other), draw(sampling(0, 0)));
  other = sampling(0, 0);
  other.repetition_penalty = 50;
  EXPECT_NE(draw(other), draw(sampling(0, 0)));
}

TEST(Sample, ForksOfAWrittenPromptDrawWhatThePromptItselfDraws) {
  const LanguageModel o;
  attnkit::Session written(o.model, 1);
  attnkit_session* const self = written.get();
  attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector<attnkit::Ids>{{1, 9, 5, 30}}));
  attnkit_sample_options options = sampling(1.2, 3);
  options.repetition_penalty = 1.3;
  const attnkit::Ids whole = attnkit::Session(o.model, 1).sample(o.prompt, options);
  options.seen = o.prompt.data();
  options.n_seen = o.prompt.size() - 1;
  for (int fork = 0; fork < 2; ++fork) EXPECT_EQ(written.clone().sample({5}, options), whole);
}

TEST(Sample, CallsBackAndStopsThere) {
  const LanguageModel o;
  attnkit::Session session(o.model, 1), rest(o.model, 1);
  attnkit::Ids seen;
  const attnkit::Ids made = session.sample(o.prompt, sampling(1.5, 1), [&](int32_t id) {
    seen.push_back(id);
    return seen.size() == 4;
  });
  EXPECT_EQ(made, seen);
  const attnkit::Ids whole = attnkit::Session(o.model, 1).sample(o.prompt, sampling(1.5, 1));
  ASSERT_GT(whole.size(), 4u);
  EXPECT_EQ(made, attnkit::Ids(whole.begin(), whole.begin() + 4));
  // The session stands behind all four.
  attnkit::Ids longer = o.prompt;
  longer.insert(longer.end(), made.begin(), made.end());
  EXPECT_EQ(session.sample({}, sampling(0, 0)), rest.sample(longer, sampling(0, 0)));
  EXPECT_THROW(session.sample({}, sampling(0, 0), [](int32_t) -> bool { throw std::out_of_range("token"); }),
               std::out_of_range);
}

TEST(Sample, EndsWithTheTokenThatCompletesAStop) {
  const LanguageModel o;
  const attnkit::Ids whole = attnkit::Session(o.model, 1).sample(o.prompt, sampling(1.5, 1));
  const auto text = [&](size_t n) {
    return o.model.detokenize(attnkit::Side::target, {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)});
  };
  ASSERT_GT(whole.size(), 5u);
  // From the last byte of the third token into the fifth; the first stop is never there.
  const std::string across = text(5).substr(text(3).size() - 1, text(4).size() - text(3).size() + 2);
  ASSERT_EQ(text(5).find(across), text(3).size() - 1);
  const char* stops[] = {"\xE2\x98\x83", across.c_str()};
  attnkit_sample_options options = sampling(1.5, 1);
  options.stops = stops;
  options.n_stops = 2;
  attnkit::Session session(o.model, 1), rest(o.model, 1);
  attnkit::Ids seen;
  const attnkit::Ids made = session.sample(o.prompt, options, [&](int32_t id) { return seen.push_back(id), false; });
  EXPECT_EQ(made, attnkit::Ids(whole.begin(), whole.begin() + 5));
  EXPECT_EQ(seen, made) << "the callback sees the last one too";
  attnkit::Ids longer = o.prompt;
  longer.insert(longer.end(), made.begin(), made.end());
  EXPECT_EQ(session.sample({}, sampling(0, 0)), rest.sample(longer, sampling(0, 0))) << "stands behind it";
  options.n_stops = 1;
  EXPECT_EQ(attnkit::Session(o.model, 1).sample(o.prompt, options), whole);
}

TEST(Sample, ACallerOfTheStructBeforeStopsIsServed) {
  const LanguageModel o;
  attnkit::Session session(o.model, 1);
  struct Before {
    alignas(attnkit_sample_options) unsigned char bytes[offsetof(attnkit_sample_options, stops)];
  };
  attnkit_sample_options options = sampling(1.5, 1);
  options.struct_size = sizeof(Before);
  const auto before = std::make_unique<Before>();  // a sanitizer sees a read beyond it
  std::memcpy(before->bytes, &options, sizeof before->bytes);
  attn_error err{sizeof err, 0, -1, ""};
  attnkit::Ids ids(o.model.info().max_length);
  uint64_t n = 0;
  ASSERT_EQ(
      attnkit_session_sample(session.get(), o.prompt.data(), o.prompt.size(),
                             reinterpret_cast<const attnkit_sample_options*>(before->bytes), ids.data(), &n, &err),
      ATTN_OK)
      << err.message;
  ids.resize(n);
  EXPECT_EQ(ids, attnkit::Session(o.model, 1).sample(o.prompt, sampling(1.5, 1)));
}

TEST(Sample, RefusesWrongUseAndLeavesTheSessionAsItWas) {
  const LanguageModel o;
  attnkit::Session session(o.model, 1), untouched(o.model, 1), beams(o.model, 2);
  attn_error err{sizeof err, 0, -1, ""};
  attnkit::Ids ids(o.model.info().max_length);
  uint64_t n = 77;
  const auto refused = [&](attnkit::Session& s, const attnkit::Ids& prompt, attnkit_sample_options options,
                           const char* words) {
    if (options.struct_size == 0) options.struct_size = sizeof options;
    EXPECT_EQ(attnkit_session_sample(s.get(), prompt.data(), prompt.size(), &options, ids.data(), &n, &err),
              ATTN_INVALID)
        << words;
    EXPECT_NE(std::string(err.message).find(words), std::string::npos) << err.message;
    EXPECT_EQ(n, 77u) << words;
  };
  const auto with = [](auto&& change) {
    attnkit_sample_options options = sampling(1, 1);
    change(options);
    return options;
  };
  refused(session, o.prompt, sampling(-1, 1), "temperature is -1");
  refused(session, o.prompt, with([](auto& s) { s.top_p = 1.5; }), "top_p is 1.5");
  refused(session, o.prompt, with([](auto& s) { s.top_k = UINT64_MAX; }), "top_k");
  refused(session, o.prompt, with([](auto& s) { s.repetition_penalty = -2; }), "repetition_penalty is -2");
  refused(session, o.prompt, with([](auto& s) { s.struct_size = 8; }), "options.struct_size 8");
  refused(session, o.prompt, with([](auto& s) { s.n_seen = 3; }), "options.seen");
  const int32_t seen[] = {3, 1 << 20};
  refused(session, o.prompt, with([&](auto& s) { s.seen = seen, s.n_seen = 2; }), "options.seen[1] is 1048576");
  refused(session, o.prompt, with([](auto& s) { s.n_stops = 1; }), "options.stops");
  const char* stops[] = {"a", "", "\xFF"};
  refused(session, o.prompt, with([&](auto& s) { s.stops = stops, s.n_stops = 2; }), "options.stops[1] is empty");
  refused(session, o.prompt, with([&](auto& s) { s.stops = stops + 2, s.n_stops = 1; }),
          "options.stops[0] is no UTF-8");
  refused(session, {1, 1 << 20}, sampling(1, 1), "1048576");
  refused(session, {1, -1}, sampling(1, 1), "-1");
  refused(session, attnkit::Ids(static_cast<size_t>(o.model.info().max_length) + 1, 5), sampling(1, 1), "max_length");
  refused(beams, o.prompt, sampling(1, 1), "2 rows");
  const attnkit_sample_options good = with([](auto& s) { s.struct_size = sizeof s; });
  EXPECT_EQ(attnkit_session_sample(nullptr, nullptr, 0, &good, ids.data(), &n, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_session_sample(session.get(), nullptr, 2, &good, ids.data(), &n, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_session_sample(session.get(), nullptr, 0, nullptr, ids.data(), &n, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_session_sample(session.get(), nullptr, 0, &good, nullptr, &n, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_session_sample(session.get(), nullptr, 0, &good, ids.data(), nullptr, &err), ATTN_INVALID);
  EXPECT_EQ(session.sample(o.prompt, sampling(1, 1)), untouched.sample(o.prompt, sampling(1, 1)));
  Opened translator;
  attnkit::Session unread(translator.model, 1);
  refused(unread, {}, sampling(1, 1), "no source was read yet");
}

TEST(Session, ManyThreadsShareAModel) {
  const Opened o;
  const attnkit::Ids source = o.source();
  const auto decode = [&] {
    attnkit::Session session(o.model, 1);
    session.read(source);
    return session.generate();
  };
  const attnkit::Ids expected = decode();
  std::vector<std::thread> threads;
  std::vector<int> equal(8, 0);
  for (int& e : equal)
    threads.emplace_back([&] {
      for (int i = 0; i < 4; ++i) e += decode() == expected;
    });
  for (std::thread& t : threads) t.join();
  for (int e : equal) EXPECT_EQ(e, 4);
}

constexpr auto offline = [](const attnkit_stream_view& v) -> uint32_t {
  return v.ended ? ATTNKIT_WRITE : ATTNKIT_READ;
};

TEST(Session, SimulatesWithAPolicyOfTheHost) {
  const Opened o;
  attnkit::Session whole(o.model, 1), streamed(o.model, 1);
  const attnkit::Ids source = o.source();
  whole.read(source);
  const std::vector<int64_t> ends = {2, static_cast<int64_t>(source.size())};
  attnkit::Ids seen;
  int reads = 0;
  const auto watch = [&](const attnkit_stream_event& e) {
    reads += e.action == ATTNKIT_READ;
    if (e.action == ATTNKIT_WRITE) seen.push_back(e.id);
  };
  const attnkit::Ids made = streamed.simulate(source, ends, offline, watch);
  EXPECT_EQ(made, whole.generate());
  EXPECT_EQ(made, seen);
  EXPECT_EQ(reads, 2);
  std::vector<int64_t> none(1);
  none.clear();  // and has an address
  EXPECT_EQ(attnkit::Session(o.model, 1).simulate(source, none, offline, watch), made);
}

TEST(Session, SimulationsEndWithWhatAHostThrows) {
  const Opened o;
  const attnkit::Ids source = o.source();
  const auto nothing = [](const attnkit_stream_event&) {};
  attnkit::Session by_policy(o.model, 1), by_watcher(o.model, 1);
  const auto bad = [](const attnkit_stream_view&) -> uint32_t { throw std::out_of_range("policy"); };
  EXPECT_THROW(by_policy.simulate(source, {}, bad, nothing), std::out_of_range);
  int events = 0;
  const auto watch = [&](const attnkit_stream_event&) {
    ++events;
    throw std::out_of_range("watcher");
  };
  EXPECT_THROW(by_watcher.simulate(source, {}, offline, watch), std::out_of_range);
  EXPECT_EQ(events, 1);
}

TEST(Session, RefusesWrongSimulations) {
  const Opened o;
  const attnkit::Ids source = o.source();
  const auto nothing = [](const attnkit_stream_event&) {};
  attnkit::Session session(o.model, 1), beams(o.model, 2);
  const std::vector<int64_t> wrong = {2, 1}, many(source.size() + 1, 1);
  EXPECT_THROW(session.simulate(source, wrong, offline, nothing), attnkit::Error);
  EXPECT_THROW(session.simulate(source, many, offline, nothing), attnkit::Error);
  EXPECT_THROW(session.simulate({}, {}, offline, nothing), attnkit::Error);
  EXPECT_THROW(session.simulate({999999}, {}, offline, nothing), attnkit::Error);
  EXPECT_THROW(beams.simulate(source, {}, offline, nothing), attnkit::Error);
  // Its own session, from inside a callback.
  const auto reenter = [&](const attnkit_stream_view&) -> uint32_t { return session.describe(), ATTNKIT_STOP; };
  EXPECT_THROW(session.simulate(source, {}, reenter, nothing), attnkit::Error);

  attn_error err{sizeof err, 0, -1, ""};
  const attn_tensor t = attnkit::tensor(source.data(), {1, static_cast<int64_t>(source.size())});
  attnkit_stream_options options{};
  options.struct_size = sizeof options;
  attnkit::Ids ids(512);
  uint64_t n = 7;
  EXPECT_EQ(attnkit_session_simulate(session.get(), &t, &options, ids.data(), &n, &err), ATTN_INVALID) << "no policy";
  options.decide = [](uintptr_t, const attnkit_stream_view*) { return ATTNKIT_READ; };
  const int64_t end = 1;
  options.ends = &end;
  EXPECT_EQ(attnkit_session_simulate(session.get(), &t, &options, ids.data(), &n, &err), ATTN_INVALID) << "no units";
  options.ends = nullptr;
  options.units = 2;
  EXPECT_EQ(attnkit_session_simulate(session.get(), &t, &options, ids.data(), &n, &err), ATTN_INVALID) << "no ends";
  EXPECT_NE(std::string(err.message).find("options.units 2"), std::string::npos) << err.message;
  options.units = 0;
  options.struct_size = 8;
  EXPECT_EQ(attnkit_session_simulate(session.get(), &t, &options, ids.data(), &n, &err), ATTN_INVALID);
  options.struct_size = sizeof options;
  EXPECT_EQ(attnkit_session_simulate(session.get(), nullptr, &options, ids.data(), &n, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_session_simulate(nullptr, &t, &options, ids.data(), &n, &err), ATTN_INVALID);
  EXPECT_EQ(n, 7u);
  EXPECT_EQ(attnkit_session_simulate(session.get(), &t, &options, ids.data(), &n, &err), ATTN_OK) << "still usable";
  EXPECT_EQ(ids[n - 1], o.model.info().end_id);
}

TEST(Session, DescribesItsState) {
  const Opened o;
  attnkit::Session session(o.model, 1);
  session.read(o.source());
  session.generate();
  EXPECT_NE(session.describe().find("\"state_bytes\""), std::string::npos);
}

}  // namespace
