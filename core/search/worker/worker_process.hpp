// One child process that works for a search: started so that it can harm nobody, killed and reaped without fail.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/search/worker/channel.hpp"

namespace attnkit::core::search {

// The child leads a process group of its own (a Ctrl-C at the terminal passes it by), has default signal dispositions,
// /dev/null as input, the log as output and errors, and one more descriptor: a socket, whose number is its last
// argument, or with Speaks::standard_files its standard input and output.  It is the kernel's first choice when memory
// runs out, and is killed when the thread that started it ends. No file it writes, the log included, grows over
// log_limit: more is refused (EFBIG), and does not kill it.
class WorkerProcess {
 public:
  static constexpr off_t log_limit = off_t{256} << 20;  // bytes

  enum class Speaks { descriptor, standard_files };

  // argv[0] is an absolute path.  Throws Failure: data when the log cannot be opened, internal when the program cannot
  // be started.
  WorkerProcess(const std::vector<std::string>& argv, const std::string& log_path, Speaks speaks = Speaks::descriptor);
  ~WorkerProcess() { end(0); }
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // This end of the socket; does not block.
  int socket() const { return socket_.get(); }
  pid_t pid() const { return pid_; }

  // Has it ended by itself?  Leaves it to be reaped.
  bool has_ended() const;

  // Gives it `patience` seconds to end by itself, kills what is left of its group and reaps it.  How it ended, "killed
  // by signal 11 (Segmentation fault)" or "ended with code 3"; empty when it had to be killed.
  std::string end(double patience);

 private:
  Descriptor socket_;
  pid_t pid_ = -1;
};

}  // namespace attnkit::core::search
