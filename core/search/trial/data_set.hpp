// The examples that every placement of a model is tried on: read, tokenised and put into a fixed order once.
#pragma once

#include <attnkit/attnkit.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/decoding/sampler.hpp"

namespace attnkit::core::search {

// The task of a model with an example, which decides what a line of a data set holds.  Where the model takes speech,
// the input is the path of a recording, relative to the data set.
enum class Task {
  translation,     // encoder and decoder: "input<TAB>reference"
  continuation,    // a decoder alone predicts each token of a text from those before it: "text"
  labelling,       // an encoder with one row of scores per token gives the text back: "text"
  classification,  // an encoder with one row of scores per text: "text<TAB>class", a number from 0
  embedding,       // an encoder with one vector per text, compared with the model's own: "text"
};

// The limits of [decode], in tokens; 0: not said.
struct DecodeLengths {
  int64_t limit = 0, max_length = 0;
};

// The facts of a model that decide how it is run.
struct TaskFacts {
  attnkit_model_info info{};
  Task task = Task::translation;
  int64_t max_target = 0;  // the longest target, where it is shorter than info.max_length; else 0
  Ids forced = {};         // what every target has behind <s>
  Sampling sampling = {};  // what [decode] says
  // [decode] changes scores, beside what it forces, or several tokens end a target: so the scores of whole sequences do
  // not say what is written.
  bool has_rules = false;
  DecodeLengths lengths = {};
  int64_t frames = 0;    // of every recording, where the model takes them whole; else 0
  std::string gpu = {};  // its name, where the model is on one; else empty
  bool encoder() const { return task != Task::continuation; }
  bool decoder() const { return task == Task::translation || task == Task::continuation; }
  bool pools() const { return task == Task::classification || task == Task::embedding; }  // one row for the whole input
  bool takes_speech() const { return info.sample_rate > 0; }
  int64_t longest_target() const { return max_target > 0 ? max_target : info.max_length; }
  // Numbers of the frames that make so many rows of the encoder, of whole recordings of them all.
  size_t speech_numbers(int64_t rows) const {
    return static_cast<size_t>((frames > 0 ? frames : rows * info.subsampling) * info.features);
  }
  // Returns the tokens before a target: <s>, where there is one, and the forced tokens.
  Ids before_target() const;
};
// Throws Error.
TaskFacts facts_of(const Model& model);
// Nothing predicts the target's length, so sessions may be given that of a reference.  Throws Error.
bool asks_for_length(const Model& model);

// The output of a model for a batch of so many rows: scores for every token, or of a classifier for every text.
struct Scores {
  Scores(const TaskFacts& facts, int64_t rows, int64_t tokens);
  const float* row(size_t i) const { return values.data() + i * static_cast<size_t>(length * width); }

  int64_t length, width;  // of a row: tokens, and scores of each
  std::vector<float> values;
  attn_tensor out;
};

// As the model takes them; which of the ids are given and which are wanted depends on the task.
struct Example {
  Ids source;                      // tokens and </s>; continuation, speech: nothing
  std::vector<float> frames = {};  // of speech, (n, features)
  Ids target;                      // read by the decoder: <s> and tokens; without a decoder: nothing
  Ids wanted;                      // by row of scores: tokens and </s>, or the class
  // The row of scores that predicts the first of what is wanted: forced tokens are not.
  size_t first_score() const { return target.size() > wanted.size() ? target.size() - wanted.size() : 0; }
  size_t rows = 0;    // of the encoder: tokens of the source, or what the frames make
  int64_t words = 0;  // tokens of the input, without <s> and </s>; of speech its rows
  size_t line = 0;    // of the file, from 1
};

// Returns the samples of a recording that the model of `facts` can take.  Files of audio are for hosts to read.  Throws
// Failure (data) that begins with origin.
using ReadAudio =
    std::function<std::vector<float>(const std::string& path, const std::string& origin, const TaskFacts& facts)>;

// The recordings that a data set of speech names, by line.
std::vector<std::string> recordings_of(const std::string& path);

// Gives a session the whole source of an example, which has one.
void read_source(Session& session, const TaskFacts& facts, const Example& example);

// Immutable: any thread.  Valid for every model with the same vocabularies, task and max_length.
class DataSet {
 public:
  DataSet() = default;
  // Throws Failure (data) naming file and line: unreadable, empty, no or too many tabs, an empty side, no UTF-8, a word
  // that the vocabulary cannot spell, longer than max_length, no such class, a recording that cannot be read.  Lines
  // may end with CR LF.  Of speech all frames are kept: 32 KB a second with 80 numbers every 10 ms.
  DataSet(const std::string& path, const Model& model, const TaskFacts& facts, const ReadAudio& read_audio = {});

  size_t size() const { return examples_.size(); }
  // In the order of the search: every prefix of it is a spread over the whole file, and depends on its length alone.
  const Example& operator[](size_t i) const { return examples_[i]; }
  std::string place_of(size_t i) const;          // "dev.tsv:17", for messages
  size_t repeated() const { return repeated_; }  // lines that stood there before, word for word

 private:
  std::string path_;
  std::vector<Example> examples_;
  size_t repeated_ = 0;
};

// Bounds that part a data set into five buckets of about equal size; fewer where many inputs have one length.
std::vector<int64_t> length_bounds(const DataSet& data);

// The bucket of an input of so many tokens: bounds are the largest of each bucket, rising; one more bucket follows
// them.
size_t bucket_of(const std::vector<int64_t>& bounds, int64_t words);

// A permutation of 0 .. n - 1 whose prefixes are spread evenly over the range.
std::vector<size_t> spread(size_t n);

}  // namespace attnkit::core::search
