#include "core/search/worker/worker_process.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/search/failure.hpp"
#include "tests/abi/temp_folder.hpp"

namespace attnkit::core::search {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

class WorkerProcessTest : public testing::Test {
 protected:
  // Sends one request and waits for its reply; null when the worker ends instead.
  static json ask(WorkerProcess& worker, const json& request) {
    LineChannel lines(worker.socket());
    lines.put(request);
    lines.flush();
    for (;;) {
      if (const auto line = lines.next_line()) return json::parse(*line);
      pollfd file{worker.socket(), POLLIN, 0};
      poll(&file, 1, 1000);
      const auto arrival = lines.receive();
      if (arrival != LineChannel::Arrival::some && arrival != LineChannel::Arrival::none) return nullptr;
    }
  }

  std::string read_log() const {
    std::ostringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }

  const TempFolder folder_;
  std::string log_ = folder_ / "log";
};

TEST_F(WorkerProcessTest, FindsNothingOfTheParentsDescriptorsAndSignals) {
  const Descriptor leak(::open("/dev/null", O_RDONLY));  // on purpose without O_CLOEXEC
  signal(SIGUSR1, SIG_IGN);
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  WorkerProcess worker({ATTNKIT_FAKE_WORKER}, log_);
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, &before, &after);
  signal(SIGUSR1, SIG_DFL);
  EXPECT_TRUE(sigismember(&after, SIGUSR2));
  EXPECT_FALSE(sigismember(&after, SIGINT));

  const json self = ask(worker, {{"id", 1}, {"kind", "self"}})["result"];
  EXPECT_EQ(self["signals"]["SigBlk"], 0u);
  EXPECT_EQ(self["signals"]["SigIgn"], uint64_t{1} << (SIGXFSZ - 1));
  EXPECT_EQ(self["is_leader"], true);
  EXPECT_LE(self["largest_file"], static_cast<uint64_t>(WorkerProcess::log_limit));
  const std::vector<int> descriptors = self["descriptors"];
  ASSERT_EQ(descriptors.size(), 5u) << self;  // 0, 1, 2, the socket and the file the worker itself reads
  EXPECT_THAT(std::vector<int>(descriptors.begin(), descriptors.begin() + 3), testing::ElementsAre(0, 1, 2));
}

TEST_F(WorkerProcessTest, OutputIsAppendedToTheLog) {
  std::ofstream(log_) << "before\n";
  for (int i = 0; i < 2; ++i) {
    WorkerProcess worker({ATTNKIT_FAKE_WORKER}, log_);
    EXPECT_EQ(ask(worker, {{"id", i}, {"kind", "babble"}})["ok"], true);
  }
  EXPECT_EQ(read_log(), "before\n{\"id\":0,\"ok\":false}\nbabble\n{\"id\":1,\"ok\":false}\nbabble\n");
}

TEST_F(WorkerProcessTest, AFullLogTakesNoMoreAndKillsNobody) {
  std::ofstream(log_) << "x";
  fs::resize_file(log_, static_cast<uintmax_t>(WorkerProcess::log_limit) - 3);
  WorkerProcess worker({ATTNKIT_FAKE_WORKER}, log_);
  EXPECT_EQ(ask(worker, {{"id", 1}, {"kind", "babble"}})["ok"], true);
  EXPECT_EQ(fs::file_size(log_), static_cast<uintmax_t>(WorkerProcess::log_limit));
}

TEST_F(WorkerProcessTest, TellsHowItEnded) {
  const std::pair<const char*, const char*> cases[] = {{"segv", "killed by signal 11 (Segmentation fault)"},
                                                       {"exit", "ended with code 3"}};
  for (const auto& [kind, how] : cases) {
    WorkerProcess worker({ATTNKIT_FAKE_WORKER}, log_);
    EXPECT_FALSE(worker.has_ended());
    EXPECT_EQ(ask(worker, {{"id", 1}, {"kind", kind}}), nullptr);
    EXPECT_EQ(worker.end(5), how);
    EXPECT_TRUE(worker.has_ended());
    EXPECT_EQ(worker.end(5), "");
  }
  WorkerProcess worker({ATTNKIT_FAKE_WORKER}, log_);
  kill(worker.pid(), SIGKILL);
  EXPECT_THAT(worker.end(5), HasSubstr("killed by signal 9 (Killed), which the kernel does when memory runs out"));
}

TEST_F(WorkerProcessTest, EndKillsWhatDoesNotEndAndItsChildren) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans come to this test
  WorkerProcess hanging({ATTNKIT_FAKE_WORKER}, log_);
  const pid_t pid = hanging.pid();
  EXPECT_EQ(hanging.end(0.02), "");
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), -1);

  WorkerProcess parent({ATTNKIT_FAKE_WORKER}, log_);
  EXPECT_EQ(ask(parent, {{"id", 1}, {"kind", "leave_child"}})["result"], 1);
  EXPECT_EQ(parent.end(5), "ended with code 5");
  int status = 0;
  EXPECT_GT(waitpid(-1, &status, 0), 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_F(WorkerProcessTest, FailuresLeaveNeitherChildNorDescriptor) {
  const auto count = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()); };
  const auto before = count();
  try {
    WorkerProcess worker({"/nowhere/worker"}, log_);
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.fault(), Fault::internal);
    EXPECT_STREQ(failure.what(), "/nowhere/worker: cannot start a worker: No such file or directory");
  }
  try {
    WorkerProcess worker({ATTNKIT_FAKE_WORKER}, folder_ / "no/log");
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.fault(), Fault::data);
    EXPECT_THAT(failure.what(), HasSubstr("/no/log: cannot write the workers' log: No such file"));
  }
  EXPECT_EQ(count(), before);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
}

TEST_F(WorkerProcessTest, StartsWhereStandardDescriptorsAreClosed) {
  const pid_t pid = fork();
  if (pid == 0) {
    for (int d : {0, 1, 2}) close(d);
    WorkerProcess worker({ATTNKIT_FAKE_WORKER}, log_);
    const bool ok = ask(worker, {{"id", 1}, {"kind", "babble"}})["ok"] == true;
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(read_log(), "{\"id\":1,\"ok\":false}\nbabble\n");
}

TEST(WorkerChannelTest, WantsASocket) {
  for (int number : {-1, 1000, 0}) {
    const Descriptor file(number == 0 ? ::open("/dev/null", O_RDONLY) : -1);
    try {
      WorkerChannel channel(number == 0 ? file.get() : number);
      FAIL();
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.fault(), Fault::usage);
    }
  }
}

}  // namespace
}  // namespace attnkit::core::search
