// Sessions through attnkit.h: what core's own tests cannot see, namely arguments, handles and threads.
#include <gtest/gtest.h>

#include <attnkit/attnkit.hpp>
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
  attnkit::Session generated(o.model, 1), written(o.model, 1);
  generated.read(o.source());
  written.read(o.source());
  const attnkit::Ids ids = generated.generate();
  const int64_t outputs = o.model.info().outputs;
  std::vector<float> logits(static_cast<size_t>(outputs));
  int32_t next = o.model.info().begin_id;
  for (int32_t expected : ids) {
    attnkit_session* const self = written.get();
    attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector<attnkit::Ids>{{next}}), logits.data(), outputs);
    next = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    ASSERT_EQ(next, expected);
  }
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
  EXPECT_THROW(attnkit::Session(o.model, 2000), attnkit::Error);
  EXPECT_EQ(attnkit_session_reorder(self, nullptr, &err), ATTN_INVALID);
  EXPECT_EQ(attnkit_session_generate(self, 1, nullptr, nullptr, &err), ATTN_INVALID);
  EXPECT_FALSE(session.generate().empty()) << "still usable";
  attnkit_session_destroy(nullptr);
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
