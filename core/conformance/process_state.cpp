#include "core/conformance/process_state.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cfenv>
#include <clocale>
#include <filesystem>

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

int entries(const char* folder) {
  int count = 0;
  std::error_code bad;
  for (std::filesystem::directory_iterator it(folder, bad), end; !bad && it != end; it.increment(bad)) ++count;
  return count;
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
      settings_(settings()),
      threads_(entries("/proc/self/task")),
      files_(entries("/proc/self/fd")) {
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
  if ((kinds & kFiles) && files_ != later.files_)
    return fmt::format("opened files, or closed some: {} before and {} after", files_, later.files_);
  if ((kinds & kSettings) && settings_ != later.settings_)
    return "changed the working directory, the environment, the locale or the file mode mask";
  return {};
}

void StateWatch::after(const char* function) {
  if (!change_.empty()) return;
  const std::string change = state_->changes_to(ProcessState(), kinds_);
  if (!change.empty()) change_ = std::string(function) + " " + change;
}

void StateWatch::check() const {
  if (!change_.empty()) throw Violation(change_);
}

}  // namespace attnkit::core::conformance
