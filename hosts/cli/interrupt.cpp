#include "interrupt.hpp"

#include <csignal>

#include "failure.hpp"

namespace attnkit::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void on_signal(int) { interrupted = 1; }

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // no SA_RESTART: waiting for input ends too
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before {};
    // A caller that ignores a signal, such as nohup or a shell's background job, goes on ignoring it.
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write
}

void check_interrupt() {
  if (interrupted) throw Failure(Exit::interrupted, "interrupted");
}

}  // namespace attnkit::cli
