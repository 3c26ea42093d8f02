// How well a model predicts the lists of a data set when it is told each reference up to the token it predicts.
//
// A list is exact when every wanted token has the highest score (the lowest id of equal ones).  Greedy decoding feeds
// back what it chose, so it writes the reference exactly when the list is exact, given that its limit allows the length
// and that no two scores are closer than whole sequences and streaming differ in rounding.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/search/data_set.hpp"
#include "core/search/quality.hpp"

namespace attnkit::search {

// How lists are run together; the sums do not depend on it beyond rounding.
struct QualityBatch {
  size_t rows = 32;     // at most
  size_t tokens = 600;  // of the longer side, padding included; a single list may have more
};

// One thread at a time.  data and facts must outlive it.
class QualityTrial {
 public:
  QualityTrial(const DataSet& data, const Facts& facts, std::vector<int64_t> bounds, QualityBatch batch = {})
      : data_(data), facts_(facts), bounds_(std::move(bounds)), batch_(batch) {}

  // By bucket (bounds.size() + 1 of them) the sums over lists [begin, end).  nll is in nats; </s> counts as a token.
  // encoder: models given with equal keys must have equal encoders; the encoder's outputs are then kept for the next
  // model, as far as 1 GiB holds them.  Empty: nothing is kept.
  // Throws Failure (usage: a range outside the data) and Error (ATTN_INTERNAL naming the list: scores that are not
  // finite).
  std::vector<QualitySums> run(const Model& model, const std::string& encoder, size_t begin, size_t end);

 private:
  using Range = std::pair<size_t, size_t>;
  std::vector<std::vector<size_t>> batches_of(Range range) const;
  std::vector<float> scores_of(const Model& model, const std::vector<size_t>& rows, size_t number, Range range,
                               int64_t& length);
  void decode(const Model& model, const Batch& source, const Batch& target, const attn_tensor& out, size_t number,
              Range range);
  void keep_for(const Model& model, const std::string& encoder);

  const DataSet& data_;
  const Facts& facts_;
  const std::vector<int64_t> bounds_;
  const QualityBatch batch_;
  std::string encoder_;
  uint64_t token_bytes_ = 0, kept_bytes_ = 0;
  std::map<Range, std::vector<Encoded>> kept_;  // by range the first batches
};

// What a list's rows of scores say about it: scores (wanted.size(), width).  nll is not finite when a
// score is NaN or the highest one infinite.
struct ListScore {
  double nll = 0;
  int64_t right = 0;
};
ListScore score_list(const float* scores, int64_t width, const Ids& wanted);

}  // namespace attnkit::search
