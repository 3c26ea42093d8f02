// Many sessions of one model at once: their memory beside the plan, their speed, and how long threads wait.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

struct SessionsBench {
  int64_t sessions = 1000;
  int64_t length = 64;   // tokens that each session reads, or is given as its beginning, and tokens that it then writes
  uint32_t threads = 1;  // the larger of the two numbers of threads
};

// What one session takes, in bytes.
struct SessionMemory {
  uint64_t planned;                // its states at the model's max_length
  uint64_t declared;               // its states at the lengths that it has at the end
  std::optional<double> resident;  // by which the process grew, all that belongs to a session; where the system tells
};

struct SessionsTiming {
  bool together;     // one call per step for all sessions, spread over `threads` by the runtime; else each thread makes
                     // the calls of its own sessions one by one, and the runtime starts none
  uint32_t threads;  // at work
  double median, first_quartile, third_quartile;  // seconds of all tokens of all sessions
  size_t repetitions;
  double processor;  // seconds of processors per token, all threads of the process, median
  double waiting;  // share of the calling threads' time that they neither ran nor could have run, the largest measured
  double waits;    // times that a calling thread was put to sleep, per 1,000 tokens, the most measured
};

struct SessionsResult {
  SessionMemory memory;
  std::vector<SessionsTiming> timings;
};

// open(threads): the model on a runtime of its own.  The ways are timed in turns.  Throws Failure: usage (a length that
// the model does not take), data (a model without a decoder), interrupted.
SessionsResult time_sessions(const std::function<Model(uint32_t threads)>& open, const SessionsBench& setup);

Json json_of(const std::string& manifest, const SessionsBench& setup, const SessionsResult& result);
std::string text_of(const std::string& manifest, const SessionsBench& setup, const SessionsResult& result);

}  // namespace attnkit::cli
