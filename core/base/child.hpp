// A program run to its end in a process of its own, whatever it does there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attnkit::core {

struct ChildResult {
  enum Ending {
    ended,      // by itself, status being its exit code
    killed,     // by a signal, status being its number
    timed_out,  // and was killed
    too_large,  // took more memory than it may, and was killed
    unknown,    // somebody else in this process took its status
  };
  Ending ending = ended;
  int status = 0;
  std::string reply;       // what it wrote to descriptor 3
  std::string output;      // what it wrote to standard output and standard error, in the order of time
  double seconds = 0;      // the limit that it had
  uint64_t max_bytes = 0;  // so had its memory
  // "was killed by signal 11 (Segmentation fault)", "did not end within 10 s".
  std::string text() const;
};

// Runs argv, argv[0] being the path of a program, with /dev/null as input and no descriptors but 0 to 3, default signal
// dispositions, and a process group of its own, all of which is killed in the end.  Nothing of this process is copied
// (posix_spawn): it may have any number of threads.  max_bytes: of its resident memory that no file on a disk backs,
// without that of its children; 0: any.  stop: is asked all the while, and true ends it as its time does.  At most
// 64 MiB of reply and 64 KiB of output are returned.  Throws Error (ATTN_INTERNAL) when it cannot be started.  Any
// thread.
ChildResult run_child(const std::vector<std::string>& argv, double seconds, uint64_t max_bytes = 0,
                      bool (*stop)() = nullptr);

}  // namespace attnkit::core
