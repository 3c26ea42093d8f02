// Simultaneous decoding: a source that arrives unit by unit, and a policy that says when to read on and when to write.
#pragma once

#include <attnkit/attnkit.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/speech/source.hpp"

namespace attnkit::core {

class Session;

// The calls that the loop makes.
struct Incremental {
  std::function<void(const SourceBatch& more, bool last)> read;  // appends to the source; last: nothing follows
  std::function<int32_t(int32_t token)> write;  // appends to the target; returns the most probable next token
};

// A source of one row in units: unit u ends before ends[u].
struct Units {
  SourceBatch source;
  std::span<const int64_t> ends;  // empty: each id is a unit
  int64_t count() const { return ends.empty() ? source.length : static_cast<int64_t>(ends.size()); }
  int64_t end(int64_t unit) const { return ends.empty() ? unit + 1 : ends[static_cast<size_t>(unit)]; }
};

// Throws Error (ATTN_INVALID): an empty source, or ends that do not ascend to its length.
void check_units(const Units& units);

// The end of the loop.  limit: most tokens, at least 1.
struct Ending {
  int32_t begin_id, end_id;
  int64_t limit;
};

// Reads and writes as options.decide says until </s>, the limit or a stop; the tokens written.  Decides before anything
// is computed, so nothing is ever taken back.  Units are handed on together when the next token needs them.
// Throws Error (ATTN_INVALID): an answer that is none, or writing before anything was read.
std::vector<int32_t> simulate(const Incremental& session, const Units& source, const Ending& ending,
                              const attnkit_stream_options& options);

// The same with an empty session of one row and the limit that options asks for.  Without ends a unit of speech is what
// completes a row of the encoder.
std::vector<int32_t> simulate(Session& session, const Units& source, const attnkit_stream_options& options);

}  // namespace attnkit::core
