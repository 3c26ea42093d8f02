#include "core/search/worker/worker_process.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

// A system call again as long as signals interrupt it.
template <class Call>
auto retried(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// All that the child needs between fork and exec, where nothing may allocate or lock.
struct Launch {
  std::vector<char*> argv;
  int socket, log, input, output, refusal;  // socket: -1 where input and output are it
  pid_t parent;
};

void reset_signals() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  // A log that is full refuses more of a plugin's chatter; nobody should die of it.
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void limit_harm() {
  rlimit limit = {};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  if (limit.rlim_cur > static_cast<rlim_t>(WorkerProcess::log_limit)) limit.rlim_cur = WorkerProcess::log_limit;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const int score = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  // A kernel without this file leaves the search without its protection.
  [[maybe_unused]] const ssize_t written = ::write(score, "1000", 4);
}

[[noreturn]] void become_worker(const Launch& launch) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before the kernel watched it.
  if (::getppid() != launch.parent) ::_exit(1);
  limit_harm();
  ::dup2(launch.input, STDIN_FILENO);
  ::dup2(launch.output, STDOUT_FILENO);
  ::dup2(launch.log, STDERR_FILENO);
  ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
  if (launch.socket >= 0) ::fcntl(launch.socket, F_SETFD, 0);
  reset_signals();
  ::execv(launch.argv[0], launch.argv.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(launch.refusal, &error, sizeof error);
  ::_exit(127);
}

// Signals wait until the child has default dispositions: a handler of this program must not run there.
pid_t fork_quietly(const Launch& launch) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) become_worker(launch);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

// Descriptors 0 to 2, free when this program was started without them, are overwritten in the child.
Descriptor above_standard(Descriptor file) {
  if (file.get() > 2 || file.get() < 0) return file;
  return Descriptor(::fcntl(file.get(), F_DUPFD_CLOEXEC, 3));
}

Descriptor open_log(const std::string& path) {
  Descriptor log = above_standard(Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)));
  if (log.get() < 0) fail(Fault::data, "{}: cannot write the workers' log: {}", path, std::strerror(errno));
  return log;
}

std::string describe(int status) {
  if (WIFEXITED(status)) return fmt::format("ended with code {}", WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  const char* name = ::sigdescr_np(signal);
  return fmt::format("killed by signal {} ({}){}", signal, name ? name : "unknown",
                     signal == SIGKILL ? ", which the kernel does when memory runs out" : "");
}

}  // namespace

WorkerProcess::WorkerProcess(const std::vector<std::string>& argv, const std::string& log_path, Speaks speaks) {
  const Descriptor log = open_log(log_path);
  const Descriptor input = above_standard(Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  int ends[2] = {-1, -1}, refusal[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) socket_ = Descriptor(ends[0]);
  Descriptor far_end = above_standard(Descriptor(ends[1]));
  const bool has_pipe = ::pipe2(refusal, O_CLOEXEC) == 0;
  const Descriptor reader(refusal[0]);
  Descriptor writer = above_standard(Descriptor(refusal[1]));
  if (input.get() < 0 || far_end.get() < 0 || !has_pipe || writer.get() < 0)
    fail(Fault::internal, "{}: cannot open descriptors for a worker: {}", argv[0], std::strerror(errno));
  ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> arguments = argv;
  Launch launch{{}, far_end.get(), log.get(), input.get(), log.get(), writer.get(), ::getpid()};
  if (speaks == Speaks::standard_files) {
    launch.input = launch.output = far_end.get();
    launch.socket = -1;
  } else {
    arguments.push_back(std::to_string(far_end.get()));
  }
  for (std::string& argument : arguments) launch.argv.push_back(argument.data());
  launch.argv.push_back(nullptr);
  pid_ = fork_quietly(launch);
  if (pid_ < 0) fail(Fault::internal, "{}: cannot start a worker: {}", argv[0], std::strerror(errno));
  // Both sides do it, so that the group is there for whichever comes first.
  ::setpgid(pid_, pid_);
  far_end.close();
  writer.close();
  int error = 0;
  if (retried([&] { return ::read(reader.get(), &error, sizeof error); }) == 0) return;
  end(0);
  fail(Fault::internal, "{}: cannot start a worker: {}", argv[0], std::strerror(error));
}

bool WorkerProcess::has_ended() const {
  if (pid_ < 0) return true;
  siginfo_t info = {};
  const int flags = WEXITED | WNOHANG | WNOWAIT;
  const int result = retried([&] { return ::waitid(P_PID, static_cast<id_t>(pid_), &info, flags); });
  return result != 0 || info.si_pid == pid_;
}

std::string WorkerProcess::end(double patience) {
  if (pid_ < 0) return {};
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + std::chrono::duration<double>(patience);
  bool by_itself = has_ended();
  while (!by_itself && Clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    by_itself = has_ended();
  }
  // Before reaping: until then nobody else can have this number.
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
  int status = 0;
  const pid_t reaped = retried([&] { return ::waitpid(pid_, &status, 0); });
  pid_ = -1;
  socket_.close();
  if (!by_itself) return {};
  return reaped < 0 ? "ended; its status went to somebody else" : describe(status);
}

}  // namespace attnkit::core::search
