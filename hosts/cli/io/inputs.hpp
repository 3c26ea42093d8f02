// The inputs of a model, texts or recordings, with their places of origin.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/decoding/sampler.hpp"
#include "core/search/trial/data_set.hpp"
#include "hosts/cli/arguments.hpp"
#include "hosts/cli/io/audio.hpp"

namespace attnkit::cli {

using namespace core;

struct Recording {
  std::string path;     // "-": standard input
  int64_t samples = 0;  // known once it was checked
  // Of standard input, which can be read but once, and of recordings that are cut into windows: from `begin` on.
  std::shared_ptr<const std::vector<float>> held;
  int64_t begin = 0;
};

struct Input {
  std::string text, origin;  // text: of a recording its path; origin: "in.txt:17", for messages
  std::optional<std::string> reference;
  Ids ids;     // with an encoder: tokens and </s>; a decoder alone: <s> and tokens; of a recording none
  Ids target;  // of the reference, without <s> and </s>
  std::optional<Recording> audio = {};
  size_t line = 0;                          // which of all inputs it is, from 0
  std::optional<std::string> skipped = {};  // why, with --unknown skip; it has no tokens then
};

// The properties of a model that decide how it is run.
struct Facts : search::TaskFacts {
  bool asks_for_length = false;             // the target's length may be set, since nothing predicts it
  bool needs_length = false;                // some block of the decoder depends on that length
  std::optional<SpeechFormat> speech = {};  // where it takes recordings, not texts
  bool classifier() const { return task == search::Task::classification; }
  bool embeds() const { return task == search::Task::embedding; }
  size_t max_length() const { return static_cast<size_t>(info.max_length); }
  int64_t longest() const { return decoder() ? longest_target() : info.max_length; }  // that every side can have
};
Facts facts_of(const Model& model);

// "in.txt:17", "standard input:17"; line: from 1.
std::string place_of(const std::string& file, size_t line);

// --text, --file, --audio, --audio-list, --target, --target-file, then others; target: what references are for.
Options with_input_options(const char* target, const Options& others);

// Standard input: left to the caller as it arrives, or read whole.
enum class LiveAudio { left, read };

// The inputs of those options, ready for the model: every text tokenized, every recording read once.  Throws Failure:
// (usage) none, texts for a model of speech or recordings for one of text, references that do not match; (data) naming
// the origin: unreadable, no such word (unless --unknown says otherwise, where that is an option), too long, references
// for some lines of a list alone.  Warns of silence.
std::vector<Input> inputs_of(const Model& model, const Facts& facts, const Arguments& arguments, LiveAudio live);

// A source's end, or what a text that a decoder continues begins with, where there is such a token.
void frame(const Facts& facts, Ids& ids);

// Tokens of one text.  Throws Failure (data) that begins with origin.
Ids tokens_of(const Model& model, Side side, const std::string& text, const std::string& origin);

// The samples of an input that is a recording.
std::vector<float> recorded(const Facts& facts, const Input& input);
// All of an input as the source of a session.
void read_source(Session& session, const Facts& facts, const Input& input);
// Tokens, </s> included, or rows of the encoder.
size_t source_length(const Facts& facts, const Input& input);

}  // namespace attnkit::cli
