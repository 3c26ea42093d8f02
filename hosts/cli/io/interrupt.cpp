#include "hosts/cli/io/interrupt.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "hosts/cli/failure.hpp"

namespace attnkit::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;
volatile int event = -1;  // readable once a signal has come

void on_signal(int) {
  const int before = errno;
  const uint64_t one = 1;
  interrupted = 1;
  if (event >= 0 && ::write(event, &one, sizeof one) < 0) {  // the flag is enough
  }
  errno = before;
}

}  // namespace

void catch_interrupts() {
  event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // No SA_RESTART: waiting ends too.  A shell that ends sends SIGHUP, and so does the kernel.
    action.sa_flags = signal == SIGHUP ? 0 : static_cast<int>(SA_RESETHAND);
    struct sigaction before {};
    // A caller that ignores a signal, such as nohup or a shell's background job, goes on ignoring it.
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write
  std::signal(SIGXFSZ, SIG_IGN);  // and so is a limit of the size of files
}

bool is_interrupted() { return interrupted != 0; }

void check_interrupt() {
  if (is_interrupted()) throw Failure(Exit::interrupted, "interrupted");
}

void wait_for_input(int fd) {
  pollfd both[2] = {{fd, POLLIN, 0}, {event, POLLIN, 0}};
  while (poll(both, 2, -1) < 0 && errno == EINTR) check_interrupt();
  check_interrupt();
}

bool take_interrupt() {
  if (!is_interrupted()) return false;
  interrupted = 0;
  uint64_t count = 0;
  if (event >= 0 && ::read(event, &count, sizeof count) < 0) {  // it was not written
  }
  return true;
}

bool input_is_there(int fd, bool wait) {
  pollfd both[2] = {{fd, POLLIN, 0}, {event, POLLIN, 0}};
  return !is_interrupted() && poll(both, 2, wait ? -1 : 0) > 0 && both[1].revents == 0 && both[0].revents != 0;
}

}  // namespace attnkit::cli
