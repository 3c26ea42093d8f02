#include "core/conformance/process_state.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cfenv>
#include <climits>
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/conformance/check.hpp"

namespace attnkit::core::conformance {

namespace {

CountAllocations counter = nullptr;
FailAllocation failure = nullptr;

std::string signals() {
  std::string out;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action = {};
    if (::sigaction(signal, nullptr, &action) != 0) continue;
    out += fmt::format("{}:{}:{} ", signal, reinterpret_cast<uintptr_t>(action.sa_sigaction), action.sa_flags);
  }
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  for (int signal = 1; signal < NSIG; ++signal) out += sigismember(&mask, signal) == 1 ? 'b' : '.';
  return out;
}

// Timers that are set; not the time that is left of them.
std::string timers() {
  std::string out;
  for (const auto which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    itimerval timer = {};
    ::getitimer(which, &timer);
    const bool runs = timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0;
    out += fmt::format("{}:{}.{} ", runs, timer.it_interval.tv_sec, timer.it_interval.tv_usec);
  }
  return out;
}

// Without the descriptor that lists them.
std::map<int, std::string> files() {
  std::map<int, std::string> out;
  std::error_code bad, none;
  for (std::filesystem::directory_iterator it("/proc/self/fd", bad), end; !bad && it != end; it.increment(bad)) {
    const std::string file = std::filesystem::read_symlink(it->path(), none).string();
    if (!file.ends_with("/fd")) out[std::atoi(it->path().filename().c_str())] = file;
  }
  return out;
}

// "descriptor 1 from /dev/null to nothing" of the first that differs, among those up to the last; empty: none does.
std::string file_changes(const std::map<int, std::string>& before, const std::map<int, std::string>& after, int last) {
  const auto at = [](const std::map<int, std::string>& files, int number) {
    const auto it = files.find(number);
    return it == files.end() ? "nothing" : it->second;
  };
  std::set<int> numbers;
  for (const auto* files : {&before, &after})
    for (const auto& [number, file] : *files) numbers.insert(number);
  for (const int number : numbers)
    if (number <= last && at(before, number) != at(after, number))
      return fmt::format("descriptor {} from {} to {}", number, at(before, number), at(after, number));
  return {};
}

int entries(const char* folder) {
  int count = 0;
  std::error_code bad;
  for (std::filesystem::directory_iterator it(folder, bad), end; !bad && it != end; it.increment(bad)) ++count;
  return count;
}

// Numbers of the processes that this one started, those that have ended and were not waited for included.
std::string children() {
  std::string out, number;
  std::error_code bad;
  for (std::filesystem::directory_iterator it("/proc/self/task", bad), end; !bad && it != end; it.increment(bad))
    for (std::ifstream file(it->path() / "children"); file >> number;) out += number + ' ';
  return out;
}

std::string processors() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {};
  return {reinterpret_cast<const char*>(&set), sizeof set};
}

std::string settings() {
  std::error_code bad;
  std::string out = std::filesystem::current_path(bad).string() + '\n' + std::setlocale(LC_ALL, nullptr);
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) (out += '\n') += *variable;
  const mode_t mask = ::umask(022);
  ::umask(mask);
  return out + fmt::format("\n{:o}", mask);
}

}  // namespace

void set_allocator(CountAllocations count, FailAllocation fail) {
  counter = count;
  failure = fail;
}

CountAllocations allocation_counter() { return counter; }

FailAllocation allocation_failure() { return failure; }

ProcessState::ProcessState()
    : signals_(signals()),
      timers_(timers()),
      settings_(settings()),
      children_(children()),
      processors_(processors()),
      threads_(entries("/proc/self/task")),
      files_(files()) {
#if defined(__x86_64__)
  modes_ = __builtin_ia32_stmxcsr() & ~0x3Fu;  // the low bits are what happened, not modes
  asm volatile("fnstcw %0" : "=m"(x87_));
#elif defined(__aarch64__)
  uint64_t modes;
  asm volatile("mrs %0, fpcr" : "=r"(modes));
  modes_ = static_cast<uint32_t>(modes);
#else
  modes_ = static_cast<uint32_t>(std::fegetround());
#endif
}

std::string ProcessState::changes_to(const ProcessState& later, uint32_t kinds) const {
  if ((kinds & kFloat) && (modes_ != later.modes_ || x87_ != later.x87_))
    return fmt::format("changed the floating-point modes of its thread ({:#x} to {:#x})", modes_, later.modes_);
  if ((kinds & kSignals) && signals_ != later.signals_) return "changed what a signal does, or which are blocked";
  if ((kinds & kThreads) && threads_ != later.threads_)
    return fmt::format("started threads, or ended some: {} before and {} after", threads_, later.threads_);
  if ((kinds & kThreads) && children_ != later.children_)
    return fmt::format("started processes, or ended some: \"{}\" before and \"{}\" after", children_, later.children_);
  if ((kinds & kThreads) && processors_ != later.processors_) return "changed on which processors its thread may run";
  if ((kinds & kTimers) && timers_ != later.timers_) return "set a timer, or stopped one";
  if (kinds & (kFiles | kStreams)) {
    const std::string change = file_changes(files_, later.files_, kinds & kFiles ? INT_MAX : STDERR_FILENO);
    if (!change.empty()) return "changed its files: " + change;
  }
  if ((kinds & kSettings) && settings_ != later.settings_)
    return "changed the working directory, the environment, the locale or the file mode mask";
  return {};
}

void StateWatch::task(attn_task fn, uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
  const ProcessState before;
  fn(arg, begin, end, worker);
  compare(before, "a task of run");
}

void StateWatch::compare(const ProcessState& before, const char* function) {
  if (!change_.empty()) return;
  const std::string change = before.changes_to(ProcessState(), kinds_);
  if (!change.empty()) change_ = std::string(function) + " " + change;
}

void StateWatch::check() const {
  if (!change_.empty()) throw Violation(change_);
}

}  // namespace attnkit::core::conformance
