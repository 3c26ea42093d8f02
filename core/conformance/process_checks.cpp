// Laws of company: calls leave the process as it was, running ones allocate nothing, nothing leaks, and neither a lack
// of memory nor a fork takes the process down.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "core/base/descriptor.hpp"
#include "core/conformance/law.hpp"
#include "core/conformance/process_state.hpp"

namespace attnkit::core::conformance {

namespace {

// Every function of the table once and more: create, fill, plan, whole runs, a stream, backward, and the frees.
void call_everything(Law& law) {
  const Mechanism mech(law.mech().plugin(), law.mech().block(), law.place().settings);
  bool ran = false;
  const auto attempt = [&](auto&& act) {
    try {
      act();
      ran = true;
    } catch (const Refused&) {
    } catch (const RefusedInWords&) {
    }
  };
  attempt([&] {
    Inputs in = law.inputs(2, 20);
    law.whole(in);
  });
  attempt([&] {
    Inputs in = law.inputs(2, 20);
    law.stream(in, chunks_of(20, 7));
  });
  attempt([&] {
    if (!law.mech().plugin().backward) return;
    Inputs in = law.inputs(2, 20);
    Training<float> training = law.train(in);
    Gradients<float> grads = training.gradients();
    training.backward(grads);
  });
  if (!ran)
    law.may_refuse([&] {
      Inputs in = law.inputs(2, 20);
      law.whole(in);
    });
}

// From before the first create on.
void watched(const Trial& trial, uint32_t kinds) {
  load(trial.file);
  bool ran = false;
  RefusedInWords words;
  for (const Place& place : places_of({trial.file, trial.seed, 0}, "process", kAnywhere)) {
    StateWatch watch(kinds);
    try {
      Law law(place);
      call_everything(law);
      ran = true;
    } catch (const RefusedInWords& refused) {
      words = refused;
    }
    watch.check();
  }
  if (!ran) throw words;
}

void quiet(const Trial& trial) { watched(trial, ProcessState::kOutput); }
void float_modes(const Trial& trial) { watched(trial, ProcessState::kFloat); }
void signals(const Trial& trial) { watched(trial, ProcessState::kSignals); }
void threads(const Trial& trial) { watched(trial, ProcessState::kThreads); }
void files(const Trial& trial) { watched(trial, ProcessState::kFiles); }
void settings(const Trial& trial) { watched(trial, ProcessState::kSettings); }

// Counts what run and backward allocate.
class AllocationWatch : public Watch {
 public:
  AllocationWatch() { set_watch(this); }
  ~AllocationWatch() override { set_watch(nullptr); }
  void before() override { before_ = allocation_counter()(); }
  void after(const char* function) override {
    const uint64_t made = allocation_counter()().made - before_.made;
    const bool computes = std::strcmp(function, "run") == 0 || std::strcmp(function, "backward") == 0;
    if (computes && made > 0 && change.empty()) change = fmt::format("{} allocated memory {} times", function, made);
  }
  std::string change;

 private:
  Allocations before_;
};

void needs_counter() {
  if (allocation_counter() == nullptr) throw NotApplicable{"nothing counts allocations in this program"};
}

void allocates(Law& law) {
  needs_counter();
  AllocationWatch watch;
  call_everything(law);
  if (!watch.change.empty()) throw Violation(watch.change);
}

// Memory that is still there after many cycles than after some.
void leaks(Law& law) {
  needs_counter();
  const attn_plugin& plugin = law.mech().plugin();
  const attn_request r = make_request(1, 8, law.keys_for(8), ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL);
  law.may_refuse([&] { Planned(law.mech(), r); });
  const auto kept = [&](int cycles) {
    const Allocations before = allocation_counter()();
    for (int i = 0; i < cycles; ++i) {
      const Mechanism mech(plugin, law.mech().block(), law.place().settings);
      Planned(mech, r);
    }
    const Allocations after = allocation_counter()();
    return static_cast<int64_t>(after.made - before.made) - static_cast<int64_t>(after.freed - before.freed);
  };
  kept(3);  // what is made once
  const int64_t some = kept(50);
  hold(some < 50, "after 50 times create, plan, plan_free and destroy {} pieces of memory were not freed", some);
}

// What act, run in a child of fork(), finds wrong: its words, or "" where it is content.  Sets signal to what ended the
// child, 0 if nothing did.
template <class Act>
std::string found_in_child(Act&& act, int& signal) {
  int ends[2];
  hold(::pipe(ends) == 0, "pipe: {}", std::strerror(errno));
  const Descriptor from(ends[0]);
  Descriptor to(ends[1]);
  const pid_t child = ::fork();
  hold(child >= 0, "fork: {}", std::strerror(errno));
  if (child == 0) {
    ::alarm(10);
    // What it prints on its way is not a plugin's word.
    const Descriptor nowhere(::open("/dev/null", O_WRONLY));
    for (const int file : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(nowhere.get(), file);
    std::string words;
    try {
      act();
    } catch (const std::exception& e) {
      words = e.what();
    }
    write_all(to.get(), words);
    ::_exit(0);
  }
  to = Descriptor();
  std::string words;
  char piece[512];
  for (ssize_t n; (n = ::read(from.get(), piece, sizeof piece)) > 0;) words.append(piece, static_cast<size_t>(n));
  int status = 0;
  hold(::waitpid(child, &status, 0) == child, "waitpid: {}", std::strerror(errno));
  signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (signal == 0 && WEXITSTATUS(status) != 0) words = fmt::format("it ended its process with {}", WEXITSTATUS(status));
  return words;
}

// Lets the nth allocation within each call into the plugin fail.
class FailingWatch : public Watch {
 public:
  explicit FailingWatch(int64_t nth) : nth_(nth) { set_watch(this); }
  ~FailingWatch() override {
    allocation_failure()(-1);
    set_watch(nullptr);
  }
  void before() override { allocation_failure()(nth_); }
  void after(const char*) override { failed |= allocation_failure()(-1); }
  bool failed = false;

 private:
  int64_t nth_;
};

// Calls act with one failing allocation after the other, until there is none left to fail.  Returns how many did.
template <class Act>
int fail_each(Act&& act) {
  for (int64_t nth = 0;; ++nth) {
    FailingWatch watch(nth);
    const Refused refused = refusal(act);
    if (!watch.failed) return static_cast<int>(nth);
    hold(refused.code == ATTN_OK || refused.code == ATTN_NO_MEMORY,
         "where allocation {} fails, it answers with code {} and not NO_MEMORY: {}", nth, refused.code, refused.what());
  }
}

// Where memory is out, create and plan say so, keep nothing, and do better the next time.
void out_of_memory(Law& law) {
  needs_counter();
  const auto calls = [&] {
    int failures = fail_each([&] { Mechanism(law.mech().plugin(), law.mech().block(), law.place().settings); });
    for (const uint32_t flags : {0u, uint32_t{ATTN_STREAM}, uint32_t{ATTN_TRAIN}}) {
      const attn_request r = make_request(2, 8, law.keys_for(8), ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL | flags);
      if (refusal(law.mech(), r).code == ATTN_OK) failures += fail_each([&] { Planned(law.mech(), r); });
    }
    return failures;
  };
  int signal = 0;
  const std::string wrong = found_in_child(
      [&] {
        calls();  // what is made once
        const Allocations before = allocation_counter()();
        const int failures = calls();
        const Allocations after = allocation_counter()();
        const auto kept =
            static_cast<int64_t>(after.made - before.made) - static_cast<int64_t>(after.freed - before.freed);
        hold(kept <= 0, "{} pieces of memory were not freed by calls in which one of {} allocations failed", kept,
             failures);
      },
      signal);
  if (signal == SIGABRT)
    throw RefusedInWords{"where memory is out it ends the process by abort(), as programs in Rust do"};
  hold(signal == 0, "where an allocation failed, the process was killed by signal {} ({})", signal,
       ::strsignal(signal));
  if (!wrong.empty()) throw Violation(wrong);
}

// A child of fork() has the memory of its parent and none of its other threads.
void forks(Law& law) {
  Inputs in = law.inputs(2, 33);
  const Array parents = law.may_refuse([&] { return law.whole(in, {}, 2); });
  int signal = 0;
  const std::string wrong = found_in_child(
      [&] { hold(same_bits(parents, law.whole(in, {}, 2)), "it gives other bits in a child of fork()"); }, signal);
  hold(signal != SIGALRM, "in a child of fork() a run takes more than 10 seconds");
  hold(signal == 0, "in a child of fork() the process was killed by signal {} ({})", signal, ::strsignal(signal));
  if (!wrong.empty()) throw Violation(wrong);
}

// The table and all it points to stay as they were.
void table_stays(Law& law) {
  const attn_plugin& plugin = law.mech().plugin();
  const auto bytes = [&] {
    std::string all(reinterpret_cast<const char*>(&plugin), offsetof(attn_plugin, backward) + sizeof plugin.backward);
    for (const char* text : {plugin.name, plugin.summary, plugin.citation, plugin.state_revision}) all += text;
    for (uint32_t i = 0; i < plugin.n_options; ++i) {
      const attn_option& o = *plugin.options[i];
      all.append(reinterpret_cast<const char*>(&o), sizeof(attn_option)).append(o.name).append(o.doc);
      for (uint32_t c = 0; c < o.n_choices; ++c) all += o.choices[c];
    }
    return all;
  };
  const std::string before = bytes();
  call_everything(law);
  hold(before == bytes(), "its table changed after it was given out");
}

constexpr Check all[] = {
    {"process", "quiet", "no call prints", quiet, nullptr, kAnywhere, Draws::none, true},
    {"process", "float_modes", "no call changes the floating-point modes", float_modes, nullptr, kAnywhere,
     Draws::none},
    {"process", "signals", "no call changes what signals do", signals, nullptr, kAnywhere, Draws::none},
    {"process", "threads", "no call starts threads", threads, nullptr, kAnywhere, Draws::none},
    {"process", "files", "no call leaves files open", files, nullptr, kAnywhere, Draws::none},
    {"process", "settings", "no call changes the working directory, the environment or the locale", settings, nullptr,
     kAnywhere, Draws::none},
    {"process", "allocates", "run and backward allocate nothing", nullptr, allocates, kAnywhere, Draws::none},
    {"process", "leaks", "what was created and planned is freed", nullptr, leaks, kAnywhere, Draws::none},
    {"process", "out_of_memory", "create and plan say that memory is out, and keep none", nullptr, out_of_memory,
     kAnywhere, Draws::none},
    {"process", "forks", "a child of fork() gets the same bits", nullptr, forks, kAnywhere, Draws::none},
    {"process", "table_stays", "the table and what it points to never change", nullptr, table_stays, kAnywhere,
     Draws::none},
};

}  // namespace

const std::span<const Check> process_checks = all;

}  // namespace attnkit::core::conformance
