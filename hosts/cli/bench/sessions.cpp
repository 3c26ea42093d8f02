#include "hosts/cli/bench/sessions.hpp"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "core/search/worker/process_memory.hpp"
#include "core/search/statistics.hpp"
#include "hosts/cli/io/inputs.hpp"
#include "hosts/cli/io/interrupt.hpp"

namespace attnkit::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t fewest = 3, most = 15;
constexpr double budget_seconds = 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// What the calling thread has spent so far.
struct Spent {
  double running = 0, ready = 0;  // seconds on a processor, and waiting for one
  int64_t waits = 0;              // times it went to sleep

  static Spent now() {
    Spent s;
    timespec cpu{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    s.running = static_cast<double>(cpu.tv_sec) + 1e-9 * static_cast<double>(cpu.tv_nsec);
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    s.waits = usage.ru_nvcsw;
    double on = 0, queued = 0;  // nanoseconds; none where the system does not tell
    std::ifstream("/proc/thread-self/schedstat") >> on >> queued;
    s.ready = 1e-9 * queued;
    return s;
  }
};

double processor_seconds() {
  timespec cpu{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  return static_cast<double>(cpu.tv_sec) + 1e-9 * static_cast<double>(cpu.tv_nsec);
}

// Runs f(thread) on that many threads until the last one ends.
struct Team {
  double seconds = 0, processor = 0, waiting = 0;  // processor: of the whole process; waiting: see SessionsTiming
  int64_t waits = 0;                               // of all threads

  template <class F>
  Team(uint32_t threads, F f) {
    std::vector<double> slept(threads);
    std::vector<int64_t> times(threads);
    std::vector<std::exception_ptr> thrown(threads);
    const auto work = [&](uint32_t t) {
      const Clock::time_point begin = Clock::now();
      const Spent before = Spent::now();
      try {
        f(t);
      } catch (...) {
        thrown[t] = std::current_exception();
      }
      const Spent after = Spent::now();
      const double busy = after.running - before.running + after.ready - before.ready;
      slept[t] = std::max(0.0, seconds_since(begin) - busy);
      times[t] = after.waits - before.waits;
    };
    const Clock::time_point start = Clock::now();
    const double before = processor_seconds();
    std::vector<std::jthread> all;
    for (uint32_t t = 0; t < threads; ++t) all.emplace_back(work, t);
    all.clear();
    processor = processor_seconds() - before;
    seconds = seconds_since(start);
    for (const std::exception_ptr& e : thrown)
      if (e) std::rethrow_exception(e);
    for (uint32_t t = 0; t < threads; ++t) {
      waiting += slept[t] / (seconds * threads);
      waits += times[t];
    }
  }
};

Ids random_ids(const attnkit_model_info& info, int32_t vocabulary, int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  Ids ids(static_cast<size_t>(n));
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
    if (id == info.end_id) id = info.begin_id;  // a target that has ended takes no more under [stream]
  }
  return ids;
}

// All sessions of one run, made and fed by several threads, so that each thread's part is its own.
class Crowd {
 public:
  Crowd(const Model& model, const Facts& facts, const SessionsBench& setup, int64_t sessions)
      : facts_(facts), n_(sessions), length_(setup.length), sessions_(static_cast<size_t>(sessions)) {
    Team(setup.threads, [&](uint32_t t) {
      for (int64_t i = first(t, setup.threads); i < first(t + 1, setup.threads); ++i) begin(model, i);
    });
    for (const auto& s : sessions_) handles_.push_back(s->get());
    for (const int32_t id : random_ids(facts_.info, facts_.info.target_vocab, length_, 0))
      one_.emplace_back(std::vector<Ids>{{id}}), all_.emplace_back(std::vector<Ids>(sessions_.size(), Ids{id}));
  }

  Team one_by_one(uint32_t threads) {
    return Team(threads, [&](uint32_t t) {
      const std::span<attnkit_session* const> mine(handles_.data() + first(t, threads),
                                                   handles_.data() + first(t + 1, threads));
      for (const Batch& token : one_) {
        check_interrupt();
        for (attnkit_session* const& session : mine) Session::write({&session, 1}, token);
      }
    });
  }

  Team together() {
    return Team(1, [&](uint32_t) {
      for (const Batch& tokens : all_) {
        check_interrupt();
        Session::write(handles_, tokens);
      }
    });
  }

  const Session& session() const { return *sessions_.front(); }

 private:
  int64_t first(uint32_t thread, uint32_t threads) const { return n_ * thread / threads; }

  void begin(const Model& model, int64_t i) {
    check_interrupt();
    auto session = std::make_unique<Session>(model, 1);
    session->set_length(static_cast<double>(2 * length_));  // no mechanism is to refuse a token for its place
    const int32_t vocabulary = facts_.encoder ? facts_.info.source_vocab : facts_.info.target_vocab;
    const Ids ids = random_ids(facts_.info, vocabulary, length_, static_cast<uint32_t>(i + 1));
    attnkit_session* const self = session->get();
    if (facts_.encoder)
      session->read(ids);
    else
      Session::write({&self, 1}, Batch(std::vector<Ids>{ids}));
    sessions_[static_cast<size_t>(i)] = std::move(session);
  }

  const Facts& facts_;
  int64_t n_, length_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<attnkit_session*> handles_;
  std::vector<Batch> one_, all_;  // the tokens of a step, for one session and for all
};

SessionMemory measure_memory(const Model& model, const Facts& facts, const SessionsBench& setup) {
  // These few make what belongs to threads and not to sessions, and stay, for what they give back would be used again.
  Crowd others(model, facts, setup, setup.threads);
  others.one_by_one(setup.threads);
  search::restart_peak();  // gives back what is free
  const auto before = search::resident_memory();
  Crowd crowd(model, facts, setup, setup.sessions);
  crowd.one_by_one(setup.threads);
  search::restart_peak();
  const auto after = search::resident_memory();
  SessionMemory memory{facts.info.state_bytes, Json::parse(crowd.session().describe())["state_bytes"], {}};
  if (before && after)
    memory.resident =
        (static_cast<double>(*after) - static_cast<double>(*before)) / static_cast<double>(setup.sessions);
  return memory;
}

Facts checked_facts(const Model& model, const SessionsBench& setup) {
  Facts facts = facts_of(model);
  if (!facts.decoder) fail(Exit::data, "--sessions: this model has no decoder, and sessions are for decoding");
  const int64_t needed = facts.encoder ? setup.length : 2 * setup.length;
  if (needed > facts.info.max_length)
    fail(Exit::usage, "--length {}: a session would hold {} tokens, the model takes up to {} (max_length)",
         setup.length, needed, facts.info.max_length);
  return facts;
}

struct Way {
  bool together;
  uint32_t threads;
  std::vector<double> seconds, processor, waiting, waits;  // processor, waits: see SessionsTiming
};

SessionsTiming timing_of(const Way& way) {
  return {way.together,
          way.threads,
          search::median(way.seconds),
          search::quantile(way.seconds, 0.25),
          search::quantile(way.seconds, 0.75),
          way.seconds.size(),
          search::median(way.processor),
          *std::max_element(way.waiting.begin(), way.waiting.end()),
          *std::max_element(way.waits.begin(), way.waits.end())};
}

}  // namespace

SessionsResult time_sessions(const std::function<Model(uint32_t)>& open, const SessionsBench& setup) {
  const Model model = open(1), spread = open(setup.threads);
  const Facts facts = checked_facts(model, setup);
  SessionsResult result{measure_memory(model, facts, setup), {}};
  std::vector<Way> ways = {{false, 1, {}, {}, {}, {}}, {true, 1, {}, {}, {}, {}}};
  if (setup.threads > 1)
    for (const bool together : {false, true}) ways.push_back({together, setup.threads, {}, {}, {}, {}});
  const double tokens = static_cast<double>(setup.sessions * setup.length);
  const Clock::time_point start = Clock::now();
  for (size_t round = 0; round < most; ++round) {
    if (round >= fewest && seconds_since(start) > budget_seconds) break;
    for (Way& way : ways) {
      Crowd crowd(way.together && way.threads > 1 ? spread : model, facts, setup, setup.sessions);
      const Team team = way.together ? crowd.together() : crowd.one_by_one(way.threads);
      way.seconds.push_back(team.seconds);
      way.processor.push_back(team.processor / tokens);
      way.waiting.push_back(team.waiting);
      way.waits.push_back(1000 * static_cast<double>(team.waits) / tokens);
    }
  }
  for (const Way& way : ways) result.timings.push_back(timing_of(way));
  return result;
}

}  // namespace attnkit::cli
