// Decodes many inputs with a batch of sessions that are refilled as they end.
#pragma once

#include <functional>
#include <span>

#include "core/base/decoding/sampler.hpp"
#include "hosts/cli/io/inputs.hpp"
#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

using namespace core;

struct DecodeOptions {
  uint32_t beams = 1, batch = 16;
  uint32_t limit = 0;                // 0: the default of attnkit_session_generate
  std::optional<Sampling> sampling;  // nothing: the best token, always
  std::vector<std::string> stops;    // an output ends before any of these
};

// The state of the session that had read and written the largest number of tokens.
struct LargestSession {
  uint64_t state_bytes = 0;
  size_t tokens = 0;
};

// The target's length that mechanisms were given; nothing where none needs it.
struct LengthUse {
  std::optional<double> length = {};
  uint64_t beyond = 0;  // tokens of the output beyond it; in a source that grows, as it was predicted for each
};
// state: "attnkit.session/1".
LengthUse length_use(const Facts& facts, const Json& state);

// A part of a recording that the model took at once.
struct Window {
  int64_t begin, end;  // samples
  std::string text;
  Ids ids;
  bool finished;
};

struct Result {
  std::string text = {};
  size_t made = 0;       // tokens, </s> included
  bool finished = true;  // not cut off at the limit
  LengthUse length = {};
  bool exact = false;                // equal to the reference
  Ids ids = {};                      // of the text, without forced ones and </s>
  std::vector<Window> windows = {};  // of a recording, where the model takes them whole
};
using Give = std::function<void(size_t index, Result result)>;

// Throws Failure for an error of decoding an input: data where the input is at fault, numerical where the model is.
[[noreturn]] void fail_decoding(const Input& input, const Error& e);

// Gives the result of every input once, in any order: the one that it has alone, empty for an input without tokens.  Of
// a recording that is longer than the model takes at once it is the text of the tokens of its windows, one behind the
// other.
// Throws Failure: data (a length that is missing or exceeded), numerical (scores that are not numbers), interrupted.
LargestSession decode(const Model& model, const Facts& facts, std::span<const Input> inputs,
                      const DecodeOptions& options, const Give& give);

}  // namespace attnkit::cli
