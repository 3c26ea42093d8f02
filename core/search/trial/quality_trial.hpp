// Measures how well a model predicts the examples of a data set, given each reference up to the token it predicts.
//
// An example is exact when every wanted token has the highest score (the lowest id of equal ones).  Greedy decoding
// feeds back what it chose, so it writes the reference exactly when the example is exact.  Where its limit cuts the
// reference off, two scores are so close that whole sequences and streaming may differ in their order, or [decode] has
// rules that change scores, the example is decoded.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/search/outcomes.hpp"
#include "core/search/trial/data_set.hpp"

namespace attnkit::core::search {

// The way examples are measured; the sums do not depend on it beyond rounding.
struct QualityBatch {
  size_t rows = 32;     // at most
  size_t tokens = 600;  // of the longer side, padding included; a single example may have more
  // Examples whose answer scores so close together decide are decoded: whole sequences and streaming differ by some
  // 1e-5 of scores around 10.
  float close = 0.01f;
};

struct Measured {
  std::vector<QualitySums> sums;  // by length bucket
  Outcomes outcomes;              // of the examples asked for
  std::vector<bool> sure = {};    // of encoder and decoder: exact, and nothing that decoding could change
  int64_t decoded = 0;            // examples that had to be
};

// The score of one example; of a vector nll is 1 - cosine.
struct ExampleScore {
  double nll = 0;
  int64_t right = 0;
  // By how much scores would have to change for another answer to "are all right": all are: the least lead of a wanted
  // token over the next one; else how far the wanted token that is farthest behind is.
  float margin = 0;
};

// One thread at a time.  data and facts must outlive it.
class QualityTrial {
 public:
  QualityTrial(const DataSet& data, const TaskFacts& facts, std::vector<int64_t> bounds, QualityBatch batch = {})
      : data_(data), facts_(facts), bounds_(std::move(bounds)), batch_(batch) {}

  // Examples [begin, end), in bounds.size() + 1 buckets.  nll is in nats; </s> counts as a token.
  // encoder: models given with equal keys must have equal encoders; the encoder's outputs are then kept for the next
  // model, as far as 1 GiB holds them: those of the latest key, and of others while there is room.  Empty: nothing is
  // kept.
  // Throws Failure (usage: a range outside the data) and Error (ATTN_INTERNAL naming the example: scores that are not
  // finite).
  Measured run(const Model& model, const std::string& encoder, size_t begin, size_t end);

  // Task embedding: the vectors of `model` are what those of others are compared with.  Before the first run of these
  // examples.  Throws as run does.
  void compare_with(const Model& model, size_t begin, size_t end);
  bool lacks_vectors(size_t begin, size_t end) const;

 private:
  using Range = std::pair<size_t, size_t>;
  std::vector<std::vector<size_t>> batches_of(Range range) const;
  ExampleScore compare(const float* vector, size_t example) const;
  template <class Source>  // Batch or SpeechBatch
  void predict(const Model& model, const std::string& encoder, const Source& source, const Batch& target,
               const attn_tensor& out, size_t number, Range range, size_t rows);
  void make_room(const std::string& encoder, uint64_t bytes);
  void check(Range range) const;
  void add(size_t example, const ExampleScore& score, size_t begin, Measured& measured) const;
  void settle(const Model& model, size_t begin, const std::vector<std::pair<size_t, ExampleScore>>& close,
              Measured& measured) const;

  const DataSet& data_;
  const TaskFacts& facts_;
  const std::vector<int64_t> bounds_;
  const QualityBatch batch_;
  // The first batches of a range, for one encoder.
  struct Kept {
    uint64_t bytes = 0;
    std::vector<Encoded> batches;
  };
  uint64_t token_bytes_ = 0, kept_bytes_ = 0;
  std::map<std::string, std::map<Range, Kept>> kept_;  // by encoder
  std::map<size_t, std::vector<float>> vectors_;       // by example, of the model as it is
};

// From the example's rows of scores (wanted.size(), width).  nll is not finite when a score is NaN or the highest one
// infinite.
ExampleScore score_example(const float* scores, int64_t width, const Ids& wanted);

}  // namespace attnkit::core::search
