// One input on one model with the output given: what timings are taken of.
#pragma once

#include <attnkit/attnkit.hpp>
#include <optional>
#include <vector>

#include "core/search/data_set.hpp"

namespace attnkit::search {

// Tokens of one session, or of one pass of an encoder alone.
struct ForcedTokens {
  Ids source;    // read, or run through an encoder alone; may be empty
  Batch prompt;  // one row, written at once; may be empty
  Ids steps;     // written one by one
  size_t prefilled() const { return source.size() + prompt.ids.size(); }
};

// A session that has read the source and written the prompt; of an encoder alone nothing is kept.
class ForcedSession {
 public:
  // Runs the prefill.  Throws Error.
  ForcedSession(const Model& model, const Facts& facts, const ForcedTokens& tokens);

  double prefill_seconds() const { return prefill_seconds_; }
  // Writes the steps to a copy of the session, so that it can be repeated; seconds of each.  The copy is not timed.
  std::vector<double> steps(const ForcedTokens& tokens) const;

 private:
  std::optional<Session> session_;
  double prefill_seconds_ = 0;
};

}  // namespace attnkit::search
