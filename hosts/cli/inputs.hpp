// What a model is given: texts with their places of origin, as the ids that the model reads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "failure.hpp"

namespace attnkit::cli {

struct Input {
  std::string text, origin;  // origin: "in.txt:17", for messages
  std::optional<std::string> reference;
  Ids ids;     // with an encoder: tokens and </s>; a decoder alone: <s> and tokens
  Ids target;  // of the reference, without <s> and </s>
};

// What of a model decides how it is run.
struct Facts {
  attnkit_model_info info;
  bool encoder = false, decoder = false;
  bool classifier = false;
  bool asks_for_length = false;  // sessions may be told the target's length, which nothing predicts
  bool needs_length = false;     // some block of the decoder depends on that length
  size_t max_length() const { return static_cast<size_t>(info.max_length); }
};
Facts facts_of(const Model& model);

// From --text, --file, --target and --target-file.  Throws Failure: none, or references that do not match them.
std::vector<Input> read_inputs(const Arguments& arguments);

// Fills in ids and target.  Throws Failure (data) naming the origin: no such word, too long.
void tokenize(const Model& model, const Facts& facts, std::vector<Input>& inputs);

// Tokens of one text.  Throws Failure (data) that begins with origin.
Ids tokens_of(const Model& model, Side side, const std::string& text, const std::string& origin);

}  // namespace attnkit::cli
