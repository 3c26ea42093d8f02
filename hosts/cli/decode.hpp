// Decodes many inputs: greedily with a batch of sessions that are refilled as they end, or by beam search one by one.
#pragma once

#include <functional>
#include <span>

#include "inputs.hpp"

namespace attnkit::cli {

struct DecodeOptions {
  uint32_t beams = 1, batch = 16;
  uint32_t limit = 0;  // 0: the default of attnkit_session_generate
};

// The state of the session that had read and written most.
struct LargestSession {
  uint64_t state_bytes = 0;
  size_t tokens = 0;
};

// Throws Failure for what went wrong while an input was decoded: data where the input is at fault, numerical where the
// model is.
[[noreturn]] void fail_decoding(const Input& input, const Error& e);

// Calls done(index, ids) once for every input, in any order; ids without </s> and `made` counting it;
// whole: </s> was reached before the limit.  An input without tokens gives none, whole.  The result is what each input
// alone gives.  Throws Failure: data (a length that is missing or exceeded), numerical (scores that are not numbers),
// interrupted.
using Done = std::function<void(size_t index, const Ids& ids, size_t made, bool whole)>;
LargestSession decode(const Model& model, const Facts& facts, std::span<const Input> inputs,
                      const DecodeOptions& options, const Done& done);

}  // namespace attnkit::cli
