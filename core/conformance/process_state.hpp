// The state of a process beside its memory, so that calls which change it are found.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/conformance/loader.hpp"

namespace attnkit::core::conformance {

// Calls of malloc and its kin, of this thread, the bytes that it made and did not free, and calls of mmap and mremap.
// All are 0 where nothing counts them.
struct Allocations {
  uint64_t made = 0, freed = 0, mapped = 0;
  int64_t bytes = 0;
};
// A program that counts them, and can let one fail, sets these before the first check.
using CountAllocations = Allocations (*)();
// The nth allocation of this thread from now on fails, the next one being 0, or that one and those after it; a negative
// nth: none.  Returns whether one has failed since the last call.
using FailAllocation = bool (*)(int64_t nth, bool later);
void set_allocator(CountAllocations count, FailAllocation fail);
CountAllocations allocation_counter();
FailAllocation allocation_failure();

// The floating-point modes of this thread, what each signal does, timers, threads, children and the processors that
// this thread may use, open files, the working directory, the environment and the locale.
class ProcessState {
 public:
  ProcessState();
  // Returns the differences, "the floating-point modes (rounding, denormals)"; empty: nothing of the kinds asked for.
  // kStreams: of the files, standard input, output and error.
  enum Kind : uint32_t {
    kFloat = 1,
    kSignals = 2,
    kThreads = 4,
    kFiles = 8,
    kSettings = 16,
    kTimers = 32,
    kStreams = 64
  };
  std::string changes_to(const ProcessState& later, uint32_t kinds) const;

 private:
  uint32_t modes_ = 0;  // MXCSR, FPCR, or the rounding alone
  uint16_t x87_ = 0;
  std::string signals_, timers_, settings_, children_, processors_;
  int threads_ = 0;
  std::map<int, std::string> files_;  // what each descriptor is open on
};

// Compares the state before and after each call, and remembers the first change.
class StateWatch : public Watch {
 public:
  explicit StateWatch(uint32_t kinds) : kinds_(kinds) { set_watch(this); }
  ~StateWatch() override { set_watch(nullptr); }
  void before() override { state_.emplace(); }
  void after(const char* function) override { compare(*state_, function); }
  void task(attn_task fn, uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) override;
  // Throws Violation with that change.
  void check() const;

 private:
  void compare(const ProcessState& before, const char* function);
  uint32_t kinds_;
  std::optional<ProcessState> state_;
  std::string change_;
};

}  // namespace attnkit::core::conformance
