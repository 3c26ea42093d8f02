#include "core/base/child.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "core/base/clock.hpp"
#include "core/base/descriptor.hpp"
#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

constexpr size_t max_reply = size_t{64} << 20, max_output = size_t{1} << 16;

// A file in memory; above the descriptors that the child's take the place of.
Descriptor memory_file(const char* name) {
  const Descriptor made(::memfd_create(name, MFD_CLOEXEC));
  Descriptor file(made.get() < 0 ? -1 : ::fcntl(made.get(), F_DUPFD_CLOEXEC, 10));
  if (file.get() < 0) fail(ATTN_INTERNAL, "no descriptor for a child process: {}", std::strerror(errno));
  return file;
}

std::string content(const Descriptor& file, size_t limit) {
  std::string text(std::min(limit, static_cast<size_t>(::lseek(file.get(), 0, SEEK_END))), '\0');
  size_t size = 0;
  for (;;) {
    const ssize_t n = ::pread(file.get(), text.data() + size, text.size() - size, static_cast<off_t>(size));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    size += static_cast<size_t>(n);
  }
  text.resize(size);
  return text;
}

// The arguments of posix_spawn, freed again.
struct Launch {
  Launch(int output, int reply) {
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_init(&files);
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, reply, 3);
    ::posix_spawn_file_actions_addclosefrom_np(&files, 4);
  }
  ~Launch() {
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&files);
  }
  Launch(const Launch&) = delete;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;
};

uint64_t own_memory(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  uint64_t kib = 0, sum = 0;
  for (std::string word; file >> word;)
    if ((word == "RssAnon:" || word == "RssShmem:") && file >> kib) sum += kib;
  return sum << 10;
}

// Has it ended?  Leaves it to be reaped.
bool has_ended(pid_t process) {
  siginfo_t info = {};
  int result = 0;
  do {
    result = ::waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT);
  } while (result != 0 && errno == EINTR);
  return result != 0 || info.si_pid == process;
}

ChildResult::Ending wait(pid_t process, double seconds, uint64_t max_bytes, bool (*stop)()) {
  const auto start = Clock::now();
  for (auto pause = std::chrono::microseconds(100); !has_ended(process);
       pause = std::min(pause * 2, std::chrono::microseconds(10'000))) {
    if (seconds_since(start) > seconds || (stop && stop())) return ChildResult::timed_out;
    if (max_bytes > 0 && own_memory(process) > max_bytes) return ChildResult::too_large;
    std::this_thread::sleep_for(pause);
  }
  return ChildResult::ended;
}

// Before reaping: until then nobody else can have this number.
void reap(pid_t process, ChildResult& result) {
  ::kill(-process, SIGKILL);
  ::kill(process, SIGKILL);
  int status = 0;
  pid_t reaped = 0;
  do {
    reaped = ::waitpid(process, &status, 0);
  } while (reaped < 0 && errno == EINTR);
  if (result.ending != ChildResult::ended) return;
  if (reaped < 0) {
    result.ending = ChildResult::unknown;
  } else if (WIFSIGNALED(status)) {
    result.ending = ChildResult::killed;
    result.status = WTERMSIG(status);
  } else {
    result.status = WEXITSTATUS(status);
  }
}

}  // namespace

std::string ChildResult::text() const {
  switch (ending) {
    case killed: {
      const char* name = ::sigdescr_np(status);
      return fmt::format("was killed by signal {} ({})", status, name ? name : "unknown");
    }
    case timed_out:
      return fmt::format("did not end within {:g} s", seconds);
    case too_large:
      return fmt::format("took more memory than the {} MiB that it may", max_bytes >> 20);
    case unknown:
      return "ended, and its status went to somebody else";
    default:
      return fmt::format("ended with code {}", status);
  }
}

ChildResult run_child(const std::vector<std::string>& argv, double seconds, uint64_t max_bytes, bool (*stop)()) {
  const Descriptor output = memory_file("output"), reply = memory_file("reply");
  // Both streams append to one file.
  ::fcntl(output.get(), F_SETFL, O_APPEND);
  const Launch launch(output.get(), reply.get());
  std::vector<std::string> arguments = argv;
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t process = -1;
  const int error =
      ::posix_spawn(&process, argv[0].c_str(), &launch.files, &launch.attributes, pointers.data(), environ);
  if (error != 0) fail(ATTN_INTERNAL, "{}: cannot be started: {}", argv[0], std::strerror(error));
  ChildResult result;
  result.seconds = seconds;
  result.max_bytes = max_bytes;
  result.ending = wait(process, seconds, max_bytes, stop);
  reap(process, result);
  result.reply = content(reply, max_reply);
  result.output = content(output, max_output);
  return result;
}

}  // namespace attnkit::core
