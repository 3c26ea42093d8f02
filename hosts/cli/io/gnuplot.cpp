#include "hosts/cli/io/gnuplot.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "core/base/descriptor.hpp"
#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/interrupt.hpp"

extern char** environ;

namespace attnkit::cli {

using namespace core;
namespace {

// A file in memory: the child reads a script of any size from it, or writes any amount of output into it.
class MemoryFile {
 public:
  explicit MemoryFile(const char* name) : file_(memfd_create(name, MFD_CLOEXEC)) {
    if (get() < 0) fail(Exit::internal, "gnuplot: no memory file: {}", std::generic_category().message(errno));
  }
  int get() const { return file_.get(); }

  void write(std::string_view text) const {
    for (size_t at = 0; at < text.size();) {
      const ssize_t n = pwrite(get(), text.data() + at, text.size() - at, static_cast<off_t>(at));
      if (n < 0 && errno != EINTR) fail(Exit::internal, "gnuplot: {}", std::generic_category().message(errno));
      at += n > 0 ? static_cast<size_t>(n) : 0;
    }
  }

  std::string read() const {
    std::string text;
    char buffer[1 << 16];
    for (;;) {
      const ssize_t n = pread(get(), buffer, sizeof buffer, static_cast<off_t>(text.size()));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return text;
      text.append(buffer, static_cast<size_t>(n));
    }
  }

 private:
  Descriptor file_;
};

// This process's environment with a UTF-8 locale, in which gnuplot measures labels, and no settings of the user's.
std::vector<char*> environment() {
  static char locale[] = "LC_ALL=C.UTF-8";
  std::vector<char*> all;
  for (char** e = environ; *e; ++e) {
    const std::string_view entry(*e);
    if (!entry.starts_with("LC_") && !entry.starts_with("GNUTERM=")) all.push_back(*e);
  }
  all.push_back(locale);
  all.push_back(nullptr);
  return all;
}

pid_t start(const MemoryFile& in, const MemoryFile& out, const MemoryFile& log) {
  char name[] = "gnuplot", defaults[] = "-d";
  char* arguments[] = {name, defaults, nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, log.get(), STDERR_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, name, &actions, nullptr, arguments, environment().data());
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT)
    throw Failure(Exit::data, "gnuplot, which draws the picture, is not installed",
                  "install the package gnuplot-nox, or take the numbers with --csv");
  if (error != 0) fail(Exit::data, "gnuplot cannot be started: {}", std::generic_category().message(error));
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail(Exit::internal, "gnuplot: {}", std::generic_category().message(errno));
    try {
      check_interrupt();
    } catch (...) {
      kill(child, SIGTERM);
      waitpid(child, &status, 0);
      throw;
    }
  }
  return status;
}

}  // namespace

std::string run_gnuplot(const std::string& script) {
  const MemoryFile in("script"), out("output"), log("log");
  in.write(script);
  const int status = wait_for(start(in, out, log));
  check_interrupt();
  std::string messages = log.read();
  messages.erase(messages.find_last_not_of(" \n") + 1);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    fail(Exit::data, "gnuplot failed: {}", messages.empty() ? "without a message" : messages.substr(0, 400));
  return out.read();
}

std::string gnuplot_text(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) continue;
    out += c == '\'' ? "''" : std::string(1, c);
  }
  return out + "'";
}

}  // namespace attnkit::cli
