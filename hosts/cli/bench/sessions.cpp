// Many sessions of one model at once: their memory beside the plan, their speed, and how long threads wait.
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <memory>
#include <thread>

#include "core/base/processors.hpp"
#include "core/search/statistics.hpp"
#include "core/search/worker/process_memory.hpp"
#include "hosts/cli/bench/bench.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

struct SessionsBench {
  int64_t sessions = 1000;
  // Tokens, or rows of the encoder, that each session reads, or is given as its beginning, and tokens that it then
  // writes.
  int64_t length = 64;
  uint32_t threads = 1;  // the larger of the two numbers of threads
};

// Bytes of one session.
struct SessionMemory {
  uint64_t planned;   // its states at the model's max_length
  uint64_t declared;  // its states at the lengths that it has at the end
  // By which the process grew, all that belongs to a session; none where unknown, and on a GPU.
  std::optional<double> resident;
};

// One way of making the calls, with the samples of all its repetitions.
struct Way {
  bool batched;      // one call per step for all sessions, spread over `threads` by the runtime; else each thread makes
                     // the calls of its own sessions one by one, and the runtime starts none
  uint32_t threads;  // at work
  std::vector<double> seconds = {};    // of all tokens of all sessions
  std::vector<double> processor = {};  // seconds of processors per token, all threads of the process
  std::vector<double> waiting = {};    // share of the calling threads' time that they neither ran nor could have run
  std::vector<double> waits = {};      // times that a calling thread was put to sleep, per 1,000 tokens
};

struct SessionsResult {
  SessionMemory memory;
  std::vector<Way> ways;
};

// Spent by the calling thread so far.
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
    double on = 0, queued = 0;  // nanoseconds; 0 where unknown
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
  double seconds = 0, processor = 0, waiting = 0;  // processor: of the whole process; waiting: see Way
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

  Team batched() {
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
    attnkit_session* const self = session->get();
    const auto ids = [&](int32_t vocabulary) {
      return random_ids(facts_.info, vocabulary, length_, static_cast<uint32_t>(i + 1));
    };
    if (facts_.speech)
      session->read(SpeechBatch(random_frames(facts_, 1, length_), facts_.info.features));
    else if (facts_.encoder())
      session->read(ids(facts_.info.source_vocab));
    else
      Session::write({&self, 1}, Batch(std::vector<Ids>{ids(facts_.info.target_vocab)}));
    sessions_[static_cast<size_t>(i)] = std::move(session);
  }

  const Facts& facts_;
  int64_t n_, length_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<attnkit_session*> handles_;
  std::vector<Batch> one_, all_;  // the tokens of a step, for one session and for all
};

SessionMemory measure_memory(const Model& model, const Facts& facts, const SessionsBench& setup) {
  // These few allocate what belongs to threads, not to sessions; they stay, since their memory would be used again.
  Crowd others(model, facts, setup, setup.threads);
  others.one_by_one(setup.threads);
  search::restart_peak();  // gives back what is free
  const auto before = search::resident_memory();
  Crowd crowd(model, facts, setup, setup.sessions);
  crowd.one_by_one(setup.threads);
  search::restart_peak();
  const auto after = search::resident_memory();
  SessionMemory memory{facts.info.state_bytes, Json::parse(crowd.session().describe())["state_bytes"], {}};
  if (facts.gpu.empty() && before && after)
    memory.resident =
        (static_cast<double>(*after) - static_cast<double>(*before)) / static_cast<double>(setup.sessions);
  return memory;
}

Facts checked_facts(const Model& model, const SessionsBench& setup) {
  Facts facts = facts_of(model);
  if (!facts.decoder()) fail(Exit::data, "--sessions: this model has no decoder, and sessions are for decoding");
  const int64_t needed = facts.encoder() ? setup.length : 2 * setup.length;
  if (needed > facts.longest())
    fail(Exit::usage, "--length {}: a session would hold {} tokens, the model takes up to {} (max_length)",
         setup.length, needed, facts.longest());
  return facts;
}

// open(threads): the model on a runtime of its own.  The ways are timed in turns.
SessionsResult time_sessions(const std::function<Model(uint32_t)>& open, const SessionsBench& setup) {
  const Model model = open(1), spread = open(setup.threads);
  const Facts facts = checked_facts(model, setup);
  SessionsResult result{measure_memory(model, facts, setup), {{false, 1}, {true, 1}}};
  if (setup.threads > 1)
    for (const bool batched : {false, true}) result.ways.push_back({batched, setup.threads});
  const double tokens = static_cast<double>(setup.sessions * setup.length);
  const Clock::time_point start = Clock::now();
  constexpr size_t min_samples = 3, max_samples = 15;
  constexpr double budget_seconds = 20;
  for (size_t round = 0; round < max_samples; ++round) {
    if (round >= min_samples && seconds_since(start) > budget_seconds) break;
    for (Way& way : result.ways) {
      Crowd crowd(way.batched && way.threads > 1 ? spread : model, facts, setup, setup.sessions);
      const Team team = way.batched ? crowd.batched() : crowd.one_by_one(way.threads);
      way.seconds.push_back(team.seconds);
      way.processor.push_back(team.processor / tokens);
      way.waiting.push_back(team.waiting);
      way.waits.push_back(1000 * static_cast<double>(team.waits) / tokens);
    }
  }
  return result;
}

double speed_of(const SessionsBench& s, const Way& way) {
  return static_cast<double>(s.sessions * s.length) / search::median(way.seconds);
}

// Beside the same way on one thread.
double scaling_of(const SessionsResult& result, const Way& way) {
  for (const Way& other : result.ways)
    if (other.batched == way.batched && other.threads == 1)
      return search::median(other.seconds) / search::median(way.seconds);
  return 1;
}

double max_of(const std::vector<double>& samples) { return *std::max_element(samples.begin(), samples.end()); }

std::string memory_text(const SessionMemory& m) {
  std::string out = fmt::format("state of a session: {} planned for max_length, {} at this length\n",
                                bytes_text(m.planned), bytes_text(m.declared));
  if (m.resident)
    out += fmt::format(
        "resident memory of a session, all that belongs to it: {}, {:.3f} of the plan, {:.3f} of this length's\n",
        bytes_text(static_cast<uint64_t>(std::max(0.0, *m.resident))), *m.resident / static_cast<double>(m.planned),
        *m.resident / static_cast<double>(m.declared));
  return out;
}

Json json_of(const std::string& manifest, const SessionsBench& s, const SessionsResult& result) {
  const SessionMemory& m = result.memory;
  Json memory = {{"planned_state_bytes", m.planned}, {"state_bytes", m.declared}};
  if (m.resident) {
    memory["resident_bytes"] = *m.resident;
    memory["resident_to_planned"] = *m.resident / static_cast<double>(m.planned);
    memory["resident_to_state"] = *m.resident / static_cast<double>(m.declared);
  }
  Json json = {{"schema", "attnkit.bench/1"},  {"part", "sessions"},      {"manifest", manifest},
               {"sessions", s.sessions},       {"length", s.length},      {"threads", s.threads},
               {"memory_per_session", memory}, {"results", Json::array()}};
  for (const Way& way : result.ways) {
    Json entry = {{"calls", way.batched ? "one per step" : "one per session"}, {"threads", way.threads}};
    add_timing(timing_of(way.seconds), entry);
    entry.update({{"tokens_per_second", speed_of(s, way)},
                  {"scaling", scaling_of(result, way)},
                  {"processor_seconds_per_token", search::median(way.processor)},
                  {"waiting", max_of(way.waiting)},
                  {"waits_per_1000_tokens", max_of(way.waits)}});
    json["results"].push_back(entry);
  }
  return json;
}

std::string text_of(const std::string& manifest, const SessionsBench& s, const SessionsResult& result) {
  std::string out = fmt::format("{}: {} sessions, each takes {} in and writes {} more\n", manifest,
                                grouped_text(static_cast<uint64_t>(s.sessions)),
                                counted_text(static_cast<size_t>(s.length), "token"), s.length);
  out += memory_text(result.memory);
  Table table({"calls", ">threads", ">median", ">quartiles", ">tokens/s", ">scaling", ">processor/token", ">waiting",
               ">waits/1,000 tokens"});
  for (const Way& way : result.ways) {
    const Timing timing = timing_of(way.seconds);
    table.add({way.batched ? "one per step" : "one per session", std::to_string(way.threads),
               seconds_text(timing.median), quartiles_text(timing),
               grouped_text(static_cast<uint64_t>(speed_of(s, way))), fmt::format("{:.2f}x", scaling_of(result, way)),
               seconds_text(search::median(way.processor)), fmt::format("{:.2f} %", 100 * max_of(way.waiting)),
               fmt::format("{:.2f}", max_of(way.waits))});
  }
  return out + table.text();
}

}  // namespace

Exit bench_sessions(const Arguments& arguments) {
  for (const char* option : {"batch", "against"})
    if (arguments.has(option)) fail(Exit::usage, "--{} does not go with --sessions", option);
  const std::vector<int64_t> lengths = arguments.integers("length", {64}, 1, 1 << 20);
  if (lengths.size() != 1) fail(Exit::usage, "--length: one length goes with --sessions, not {}", lengths.size());
  SessionsBench setup;
  setup.length = lengths.front();
  setup.sessions = arguments.integer("sessions", 1000, 1, 65536);
  setup.threads = static_cast<uint32_t>(arguments.integer("threads", 0, 0, 1024));
  if (setup.threads == 0) setup.threads = core::usable_processors();
  open_model(open_runtime(arguments), arguments);  // reports warnings and errors of the manifest once
  const auto open = [&](uint32_t threads) {
    return open_model_quietly(Runtime(threads, plugin_path(arguments), device_type(arguments)),
                              arguments.text("MANIFEST"));
  };
  const SessionsResult result = time_sessions(open, setup);
  print_result(arguments.json(), json_of(arguments.text("MANIFEST"), setup, result),
               text_of(arguments.text("MANIFEST"), setup, result));
  return Exit::success;
}

}  // namespace attnkit::cli
