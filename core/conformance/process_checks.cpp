// Laws of company: calls leave the process as it was, running ones allocate nothing, and nothing leaks.
#include <cstring>
#include <vector>

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
    {"process", "table_stays", "the table and what it points to never change", nullptr, table_stays, kAnywhere,
     Draws::none},
};

}  // namespace

const std::span<const Check> process_checks = all;

}  // namespace attnkit::core::conformance
