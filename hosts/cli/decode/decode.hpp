// Decodes many inputs: greedily with a batch of sessions that are refilled as they end, or by beam search one by one.
#pragma once

#include <functional>
#include <span>

#include "hosts/cli/io/inputs.hpp"
#include "hosts/cli/io/output.hpp"

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

// What mechanisms were told of a target's length; nothing where none needs it.
struct LengthUse {
  std::optional<double> told;
  uint64_t beyond = 0;  // tokens written beyond it, by all rows of the session
};

// state: "attnkit.session/1".
LengthUse length_use(const Facts& facts, const Json& state);

struct Decoded {
  Ids ids;            // without </s>
  size_t made = 0;    // counting </s>
  bool whole = true;  // </s> was reached before the limit
  LengthUse length;
};

// Throws Failure for what went wrong while an input was decoded: data where the input is at fault, numerical where the
// model is.
[[noreturn]] void fail_decoding(const Input& input, const Error& e);

// Calls done(index, decoded) once for every input, in any order.  An input without tokens gives none, whole.  The
// result is what each input alone gives.  Throws Failure: data (a length that is missing or exceeded), numerical
// (scores that are not numbers), interrupted.
using Done = std::function<void(size_t index, const Decoded& decoded)>;
LargestSession decode(const Model& model, const Facts& facts, std::span<const Input> inputs,
                      const DecodeOptions& options, const Done& done);

}  // namespace attnkit::cli
