// Trials in child processes: a plugin that crashes, hangs, prints or takes all memory costs one trial, not the search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.hpp"
#include "core/search/failure.hpp"
#include "core/search/worker/worker.hpp"

namespace attnkit::core::search {

// A machine that workers run on, by the command that starts one there, and what became of it.
struct LaunchedHost {
  std::string name;                 // what messages call it
  std::string command;              // of /bin/sh; the worker speaks through its standard input and output
  nlohmann::json opened = nullptr;  // "result" of a worker's reply to `open`; null: none came so far
  size_t trials = 0;                // that ended there, whose reply counts
  size_t lost = 0;                  // that crashed, were late or got no reply there, and ended well elsewhere
  std::string trouble = {};         // how the latest of them failed
  std::string reason = {};          // why it is no longer used; empty: it is
  size_t lost_in_a_row = 0;
  int open_crashes_in_a_row = 0;
};

struct WorkerCommand {
  std::vector<std::string> argv;  // argv[0] an absolute path; see WorkerProcess for what a worker finds
  // The first request to every worker, also to one started in place of another; its "expects" to the first of a host.
  nlohmann::json open;
  uint64_t memory = 0;   // bytes of its own that a worker may have resident; 0: no limit
  std::string log_path;  // stdout and stderr of workers are appended here
  // Set: workers are started on these in place of argv.  Pools of one search share them, and so what is known of them.
  std::shared_ptr<std::vector<LaunchedHost>> hosts = nullptr;
  std::string cpu = {};  // set: of the hosts only those whose reply to `open` has this "cpu"
};

struct TrialRequest {
  nlohmann::json request;  // an object; the pool sets its "id"
  double timeout_seconds = 0;
  size_t tag = 0;  // comes back with the reply
  // Set: a "result" of a host that it throws at, or returns false for, is no reply to this request.
  std::function<bool(const nlohmann::json& result)> accepts = {};
};

// Returns the seconds after which another host runs a trial as well: twice the median of those that ended, at least 1.
double slow_after(std::vector<double> seconds);

// Workers speak through a WorkerChannel, and as Worker says.  Belongs to one thread, the workers die with it.  Its
// functions are not called from within done or stop.
//
// Each host has as many workers.  A trial that crashes, is late or wants memory on one is run once more on another;
// what is still under way when nothing is left to start, and takes long, is run on another as well, and the first reply
// counts: a host that is slow, dies or talks nonsense loses no trial.  A host that refuses `open`, fails in it twice in
// a row, or lost three trials in a row is used no more; the pool fails when it has no other.  memory is not looked at
// there, and what a launcher started elsewhere has to end when its standard input does.
class WorkerPool {
 public:
  // Starts nothing yet.  At most `jobs` workers, at least one, of each host; each has open_timeout seconds to reply to
  // `open`.
  WorkerPool(WorkerCommand command, int jobs, double open_timeout);
  ~WorkerPool();  // kills the workers

  // Starts the first worker, of every host, unless they are there and returns the "result" of the first one's
  // reply to `open`. Throws Failure: of the error's kind (refused: manifest, data: data, else internal), internal when
  // it crashed or took too long, interrupted when stop, asked about every 0.1 s, returned true.
  nlohmann::json open(const std::function<bool()>& stop = {});

  // Ten times a second or more each worker's memory is looked at: one with too much is killed, and its trial ends with
  // an error of kind "memory".  A trial with such an error beside what others left in its worker is run once more, in a
  // new one.
  // Runs the requests, up to `jobs` at once, and calls done on this thread as each ends, in any order.  Each worker
  // takes its own contiguous share in order, then the rear half of the largest share left.  stop is asked about every
  // 0.1 s: once it returns true no request is started, those that run are finished, and run returns.
  // Throws Failure when a worker cannot be started, refuses `open`, or crashes or is late with it twice in a row; what
  // done or stop throw goes on.  All workers are dead then; the pool can be used again.
  void run(std::span<const TrialRequest> requests, const std::function<void(TrialReply)>& done,
           const std::function<bool()>& stop);

 private:
  class Run;

  void start(size_t slot);
  void settle_open(size_t slot, TrialReply reply, int allowed_crashes);
  LaunchedHost* host_of(size_t slot) const;  // NULL: workers are argv
  bool is_usable(size_t slot) const;
  size_t usable_hosts() const;
  void give_up(LaunchedHost& host, const std::string& reason, Fault fault);
  void check_hosts(Fault fault) const;
  bool wait();  // true: ready_ has all that are busy
  void kill_all();

  WorkerCommand command_;
  double open_timeout_;
  std::vector<std::unique_ptr<Worker>> workers_;  // by slot; null: started when there is work for it
  nlohmann::json open_result_;
  int open_crashes_ = 0;  // in a row, without hosts
  uint64_t latest_id_ = 0;
  std::vector<size_t> ready_;  // slots that wait() found to have something, or that are due to be looked at
  Clock::time_point looked_at_all_ = {};
};

}  // namespace attnkit::core::search
