// A program that a search asks, one question at a time, and that may crash, hang or talk nonsense over it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.hpp"
#include "core/search/worker/channel.hpp"
#include "core/search/worker/worker_process.hpp"

namespace attnkit::core::search {

struct TrialReply {
  enum Status { ok, error, crashed, timed_out };
  size_t tag = 0;
  Status status = ok;
  nlohmann::json body;    // ok: the reply's "result"; error: its "error", an object; else null
  std::string reason;     // one line unless ok: the error's message, "killed by signal 11 (Segmentation fault)", ...
  double seconds = 0;     // from sending the request to the end of the trial
  std::string host = {};  // the LaunchedHost's name
};

// A request is an object; a reply is {"id":ID,"ok":true,"result":...} or
// {"id":ID,"ok":false,"error":{"kind":...,"message":...}}, and anything else ends the program.
struct Worker {
  // max_memory: bytes of its own that it may have resident; 0: no limit.
  Worker(const std::vector<std::string>& argv, const std::string& log_path, WorkerProcess::Speaks speaks,
         uint64_t max_memory)
      : process(argv, log_path, speaks), lines(process.socket()), max_memory(max_memory) {}

  bool is_busy() const { return id != 0; }
  // It was asked nothing: an end, or words, are leftovers of the trial before.
  bool is_stale();
  void ask(nlohmann::json request, uint64_t new_id, double timeout);
  // No value while it works; its process is dead when it crashed or timed out.
  std::optional<TrialReply> poll();

  WorkerProcess process;
  LineChannel lines;
  const uint64_t max_memory;
  bool is_open = false;  // has replied to open
  bool has_read = true;  // false: ended before it had read the request
  bool is_used = false;  // has run a trial, of which something may be left in its memory
  uint64_t id = 0;       // of the request it works on; 0: none
  size_t trial = 0;      // index of that request, once open
  Clock::time_point begin, deadline;
  double timeout_seconds = 0;

 private:
  TrialReply reply(TrialReply::Status status, nlohmann::json body, std::string reason) const;
  TrialReply take_too_much();
  TrialReply crash(std::string reason);
  TrialReply understand(const std::string& line);
};

}  // namespace attnkit::core::search
