// The tokens that a session writes by itself, greedily or drawn (core/session/drawing.cpp) or by beam search
// (core/session/beam.cpp), one step at a time: between any two of them sessions join others and leave them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/decoding/sampler.hpp"
#include "core/model/device_compute.hpp"

namespace attnkit::core {

class Session;

class Generation {
 public:
  virtual ~Generation() = default;
  // The scores of each row that the next choice needs of a device; `scores`: all of them.
  virtual StepResult needs(const Session& session) const = 0;
  // Chooses the next token of each row.  found: what a device found, the session's from `first_row` on; NULL:
  // session.last().  Throws Error as Session::next_scores; nothing was chosen then.
  virtual void choose(const Session& session, const DeviceCompute* found, int64_t first_row) = 0;

  std::vector<int32_t> next;      // chosen and to be written, one for each row
  std::vector<uint32_t> parents;  // the rows that those of `next` continue, before it is written; empty: each its own
  int64_t limit = 0;              // tokens at most, as it was asked for
  std::vector<int32_t> made;      // once it is over, </s> included where it was reached
  bool over = false;              // when `next` is written

 protected:
  // An empty session begins with <s>.
  Generation(const Session& session, int64_t limit);
};

// Of a session of one row.  limit: tokens at most.  stop(id) ends it; may be empty.
std::unique_ptr<Generation> draw(const Session& session, Sampler sampler, int64_t limit,
                                 std::function<bool(int32_t)> stop = {});
// The rows are the beams.
std::unique_ptr<Generation> search_beams(const Session& session, int64_t limit);

// Continues different sessions of one model together until one of them is over, at most `steps` tokens of each where
// that is not 0.  Error of one of several: in words that say which; the others may go on without it.
void generate(std::span<Session* const> sessions, std::span<const std::unique_ptr<Generation>> generations,
              int64_t steps);

}  // namespace attnkit::core
