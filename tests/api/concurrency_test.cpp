// Many threads at once: eight of them on however few processors, each scenario beside sessions that decode.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <attnkit/attnkit.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

constexpr int threads = 8;

attnkit::Ids source_of(int i) {
  attnkit::Ids ids;
  for (int k = 0; k < 3 + i % 5; ++k) ids.push_back(3 + (7 * i + 11 * k) % 90);
  ids.push_back(2);
  return ids;
}

struct Concurrency : testing::Test {
  const attnkit::Runtime runtime{2};
  const attnkit::Model model{runtime, ATTNKIT_MANIFESTS "/relu.toml"};

  attnkit::Session begun(int i) const {
    attnkit::Session session(model, 1);
    session.read(source_of(i));
    return session;
  }

  // Draws greedily; between two tokens another thread may run.
  template <class OnToken>
  static attnkit::Ids draw(attnkit::Session& session, OnToken on_token) {
    attnkit_sample_options options{};
    options.limit = 12;
    return session.sample({1}, options, on_token);
  }
  attnkit::Ids drawn(int i) const {
    attnkit::Session session = begun(i);
    return draw(session, [](int32_t) {
      sched_yield();
      return false;
    });
  }

  // act(thread, turn) on half of the threads, while the others decode what they decoded before, alone.
  template <class Act>
  void beside_decoding(int turns, Act act) {
    std::vector<attnkit::Ids> alone;
    for (int i = 0; i < threads; ++i) alone.push_back(drawn(i));
    std::atomic<int> different = 0, acting = threads / 2;
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t)
      all.emplace_back([&, t] {
        if (t % 2) {
          for (int turn = 0; turn < turns; ++turn) act(t, turn);
          --acting;
        } else {
          do different += drawn(t) != alone[static_cast<size_t>(t)];
          while (acting > 0);
        }
      });
    for (auto& thread : all) thread.join();
    EXPECT_EQ(different, 0);
  }
};

// Calls what it is given, which must fail since its session is busy.
template <class Call>
bool is_refused(Call call) {
  try {
    call();
  } catch (const attnkit::Error& e) {
    EXPECT_EQ(e.code(), ATTN_INVALID) << e.what();
    return e.code() == ATTN_INVALID;
  }
  return false;
}

TEST_F(Concurrency, ModelsAreLoadedAndDestroyed) {
  std::atomic<int> different = 0;
  const std::string description = model.describe();
  beside_decoding(6, [&](int t, int turn) {
    // Its own runtime now and then, whose plugins are those that are loaded.
    const attnkit::Runtime own{1};
    const attnkit::Model again(turn % 2 ? own : runtime, ATTNKIT_MANIFESTS "/relu.toml");
    different += again.describe() != description;
    attnkit::Session session(again, 1);
    session.read(source_of(t));
    session.generate(4);
  });
  EXPECT_EQ(different, 0);
}

TEST_F(Concurrency, PluginsAreLookedFor) {
  std::atomic<int> different = 0;
  const std::string list = runtime.list();
  beside_decoding(10, [&](int, int) { different += attnkit::Runtime(1).list() != list; });
  EXPECT_EQ(different, 0);
}

TEST_F(Concurrency, ASessionRefusesASecondThread) {
  std::atomic<int> accepted = 0, different = 0;
  const attnkit::Ids alone = drawn(0);
  beside_decoding(4, [&](int, int) {
    attnkit::Session session = begun(0);
    std::mutex mutex;
    std::condition_variable changed;
    enum { before, drawing, tried } state = before;
    std::thread second([&] {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return state == drawing; });
      accepted += !is_refused([&] { session.generate(1); });
      accepted += !is_refused([&] { session.save(); });
      accepted += !is_refused([&] { session.clone(); });
      accepted += !is_refused([&] { session.step(3); });
      state = tried;
      changed.notify_all();
    });
    const attnkit::Ids ids = draw(session, [&](int32_t) {
      std::unique_lock lock(mutex);
      if (state == before) state = drawing;
      changed.notify_all();
      changed.wait(lock, [&] { return state == tried; });
      return false;
    });
    second.join();
    different += ids != alone;
  });
  EXPECT_EQ(accepted, 0);
  EXPECT_EQ(different, 0);
}

TEST_F(Concurrency, DecodingIsCancelled) {
  std::atomic<int> different = 0;
  beside_decoding(20, [&](int t, int turn) {
    const attnkit::Ids whole = drawn(t);
    const size_t wanted = 1 + static_cast<size_t>(turn) % whole.size();
    attnkit::Session session = begun(t);
    size_t seen = 0;
    const attnkit::Ids some = draw(session, [&](int32_t) { return ++seen == wanted; });
    different += some != attnkit::Ids(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(wanted));
  });
  EXPECT_EQ(different, 0);
}

TEST_F(Concurrency, SessionsAreSavedAndLoaded) {
  std::atomic<int> different = 0;
  beside_decoding(10, [&](int t, int) {
    attnkit::Session session = begun(t);
    session.step(1);
    attnkit::Session again = attnkit::Session::load(model, session.save());
    std::vector<float> first(static_cast<size_t>(model.info().outputs)), second = first;
    for (int32_t token = 3; token < 8; ++token) {
      session.step(token, first);
      again.step(token, second);
      different += first != second;
    }
  });
  EXPECT_EQ(different, 0);
}

}  // namespace
