#include "core/search/trial/quality_trial.hpp"

#include <algorithm>
#include <attnkit/kernels/simd.hpp>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "core/base/decoding/greedy.hpp"
#include "core/base/decoding/scores.hpp"
#include "core/search/failure.hpp"
#include "core/search/trial/greedy_trial.hpp"

namespace attnkit::core::search {
namespace {

constexpr uint64_t max_kept = uint64_t{1} << 30;
constexpr size_t max_scores = size_t{1} << 24;  // of a batch, unless a single example has more

// The rows of one example, whole vectors at a time.
struct Body {
  const float* scores;
  int64_t width;
  const Ids& wanted;
  ExampleScore& result;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    float lead = __builtin_inff(), lag = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const float* row = scores + static_cast<int64_t>(i) * width;
      float second = 0;
      const float top = highest<Isa>(row, second);
      const float own = row[wanted[i]];
      result.nll +=
          log_sum_over({row, static_cast<size_t>(width)}, top) + (static_cast<double>(top) - static_cast<double>(own));
      result.right += own == top && !stands_before(row, wanted[i], top);
      lead = std::min(lead, top - second);
      lag = std::max(lag, top - own);
    }
    result.margin = result.right == static_cast<int64_t>(wanted.size()) ? lead : lag;
  }

  // The last lanes, filled up with what neither the highest nor the sum notices.
  template <class Isa>
  ATTNKIT_INLINE simd::Vec<Isa> tail(const float* row, int64_t from) const {
    float lanes[simd::kLanes];
    std::fill(lanes, lanes + simd::kLanes, -__builtin_inff());
    std::memcpy(lanes, row + from, static_cast<size_t>(width - from) * sizeof(float));
    return simd::at<Isa>(lanes);
  }

  // second: the next one, which may be as high.
  template <class Isa>
  ATTNKIT_INLINE float highest(const float* row, float& second) const {
    simd::Vec<Isa> top = -__builtin_inff() - simd::Vec<Isa>{}, next = top;
    int64_t j = 0;
    const auto take = [&](const simd::Vec<Isa>& v) __attribute__((always_inline)) {
      const simd::Vec<Isa> lower = simd::select(v > top, top, v);
      next = simd::select(lower > next, lower, next);
      top = simd::select(v > top, v, top);
    };
    for (; j + simd::kLanes <= width; j += simd::kLanes) take(simd::at<Isa>(row + j));
    take(tail<Isa>(row, j));
    const float first = simd::largest(top);
    const bool is_shared = simd::sum(simd::select(top == first, 1.0f - simd::Vec<Isa>{}, simd::Vec<Isa>{})) > 1;
    second = is_shared ? first : simd::largest(simd::select(top == first, next, top));
    return first;
  }

  ATTNKIT_INLINE bool stands_before(const float* row, int32_t id, float top) const {
    int32_t found = 0;
    for (int32_t j = 0; j < id; ++j) found |= row[j] == top;
    return found != 0;
  }
};

constexpr const char* not_finite = "the model's scores are not finite numbers: its weights or a mechanism are broken";

// The words of greedy decoding, if it would have met a NaN too.
std::string what_is_wrong(const float* scores, int64_t width, int64_t tokens) {
  for (int64_t t = 0; t < tokens; ++t)
    if (std::any_of(scores + t * width, scores + (t + 1) * width, [](float x) { return std::isnan(x); }))
      return nan_message(t);
  return not_finite;
}

}  // namespace

ExampleScore score_example(const float* scores, int64_t width, const Ids& wanted) {
  ExampleScore result;
  simd::dispatch(Body{scores, width, wanted, result});
  return result;
}

// Examples of similar length side by side, so that little of a batch is padding.
std::vector<std::vector<size_t>> QualityTrial::batches_of(Range range) const {
  std::vector<size_t> order(range.second - range.first);
  std::iota(order.begin(), order.end(), range.first);
  const auto length = [&](size_t i) { return std::max(data_[i].target.size(), size_t{1}); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(length(a), data_[a].rows, a) < std::tuple(length(b), data_[b].rows, b);
  });
  std::vector<std::vector<size_t>> batches;
  size_t longest = 0;
  for (size_t i : order) {
    const size_t tokens = std::max(data_[i].target.size(), data_[i].rows);
    const size_t rows = batches.empty() ? batch_.rows : batches.back().size();
    longest = std::max(longest, tokens);
    const size_t area = (rows + 1) * longest;
    if (rows >= batch_.rows || area > batch_.tokens || area * static_cast<size_t>(facts_.info.outputs) > max_scores) {
      batches.emplace_back();
      longest = tokens;
    }
    batches.back().push_back(i);
  }
  return batches;
}

template <class Source>
void QualityTrial::predict(const Model& model, const std::string& encoder, const Source& source, const Batch& target,
                           const attn_tensor& out, size_t number, Range range, size_t rows) {
  if (encoder.empty() || facts_.task != Task::translation) return model.forward(source, target, out);
  Kept& kept = kept_[encoder][range];
  if (number < kept.batches.size()) return model.decode(kept.batches[number], target, out);
  Encoded encoded = model.encode(source);
  model.decode(encoded, target, out);
  const uint64_t bytes = source.lengths.size() * rows * token_bytes_;
  make_room(encoder, bytes);
  if (number > kept.batches.size() || bytes > max_kept - kept_bytes_) return;
  kept_bytes_ += bytes;
  kept.bytes += bytes;
  kept.batches.push_back(std::move(encoded));
}

// Takes it from other encoders.
void QualityTrial::make_room(const std::string& encoder, uint64_t bytes) {
  for (auto other = kept_.begin(); other != kept_.end() && bytes > max_kept - kept_bytes_;) {
    if (other->first == encoder) {
      ++other;
      continue;
    }
    for (const auto& [range, kept] : other->second) kept_bytes_ -= kept.bytes;
    other = kept_.erase(other);
  }
}

void QualityTrial::check(Range range) const {
  const auto [begin, end] = range;
  if (begin > end || end > data_.size())
    fail(Fault::usage, "examples {} to {}: the data set has {}", begin, end, data_.size());
}

bool QualityTrial::lacks_vectors(size_t begin, size_t end) const {
  if (facts_.task != Task::embedding) return false;
  for (size_t i = begin; i < end; ++i)
    if (!vectors_.contains(i)) return true;
  return false;
}

void QualityTrial::compare_with(const Model& model, size_t begin, size_t end) {
  check({begin, end});
  for (const std::vector<size_t>& rows : batches_of({begin, end})) {
    std::vector<Ids> sources;
    for (const size_t i : rows) sources.push_back(data_[i].source);
    const Batch source(sources), none;
    const Scores scores(facts_, static_cast<int64_t>(rows.size()), source.length);
    model.forward(source, none, scores.out);
    for (size_t r = 0; r < rows.size(); ++r) vectors_[rows[r]].assign(scores.row(r), scores.row(r) + scores.width);
  }
}

ExampleScore QualityTrial::compare(const float* vector, size_t example) const {
  const std::vector<float>& own = vectors_.at(example);
  double product = 0, own_squares = 0, squares = 0;
  for (size_t c = 0; c < own.size(); ++c) {
    product += static_cast<double>(vector[c]) * own[c];
    own_squares += static_cast<double>(own[c]) * own[c];
    squares += static_cast<double>(vector[c]) * vector[c];
  }
  const double lengths = std::sqrt(own_squares * squares);
  if (lengths == 0) return {own_squares == squares ? 0.0 : 1.0, 0};
  return {1 - product / lengths, 0};
}

Measured QualityTrial::run(const Model& model, const std::string& encoder, size_t begin, size_t end) {
  check({begin, end});
  if (token_bytes_ == 0)
    token_bytes_ = nlohmann::json::parse(model.describe()).at("d_model").get<uint64_t>() * sizeof(float);
  Measured measured;
  measured.sums.resize(bounds_.size() + 1);
  measured.outcomes.resize(end - begin);
  const bool writes = facts_.task == Task::translation;
  if (writes) measured.sure.resize(end - begin);
  std::vector<std::pair<size_t, ExampleScore>> close;
  size_t number = 0;
  for (const std::vector<size_t>& rows : batches_of({begin, end})) {
    std::vector<Ids> sources, targets;
    std::vector<std::vector<float>> speech;
    size_t longest = 0;  // rows of the encoder
    for (size_t i : rows) {
      if (facts_.takes_speech())
        speech.push_back(data_[i].frames);
      else if (facts_.encoder())
        sources.push_back(data_[i].source);
      if (facts_.decoder()) targets.push_back(data_[i].target);
      longest = std::max(longest, data_[i].rows);
    }
    const Batch source(sources), target(targets);
    const Scores scores(facts_, static_cast<int64_t>(rows.size()), facts_.decoder() ? target.length : source.length);
    if (facts_.takes_speech())
      predict(model, encoder, SpeechBatch(speech, facts_.info.features), target, scores.out, number++, {begin, end},
              longest);
    else
      predict(model, encoder, source, target, scores.out, number++, {begin, end}, longest);
    for (size_t r = 0; r < rows.size(); ++r) {
      const Example& example = data_[rows[r]];
      const bool is_vector = facts_.task == Task::embedding;
      const ExampleScore score =
          is_vector ? compare(scores.row(r), rows[r])
                    : score_example(scores.row(r) + example.first_score() * static_cast<size_t>(scores.width),
                                    scores.width, example.wanted);
      if (!std::isfinite(score.nll))
        throw Error(ATTN_INTERNAL,
                    fmt::format("{}: {}", data_.place_of(rows[r]),
                                is_vector ? not_finite
                                          : what_is_wrong(scores.row(r) +
                                                              example.first_score() * static_cast<size_t>(scores.width),
                                                          scores.width, static_cast<int64_t>(example.wanted.size()))));
      const auto wanted = static_cast<int64_t>(example.wanted.size());
      const bool is_exact = score.right == wanted;
      const bool is_cut = facts_.forced.size() + example.wanted.size() > limit_of(facts_, example);
      if (writes && (facts_.has_rules || !(score.margin >= batch_.close) || (is_exact && is_cut))) {
        close.emplace_back(rows[r], score);
        continue;
      }
      add(rows[r], score, begin, measured);
      if (writes) measured.sure[rows[r] - begin] = is_exact;
    }
  }
  settle(model, begin, close, measured);
  return measured;
}

void QualityTrial::add(size_t example, const ExampleScore& score, size_t begin, Measured& measured) const {
  const Example& of = data_[example];
  const auto tokens = facts_.task == Task::embedding ? int64_t{1} : static_cast<int64_t>(of.wanted.size());
  measured.sums[bucket_of(bounds_, of.words)] += sums_of_example(score.right == tokens, tokens, score.right, score.nll);
  measured.outcomes.set(example - begin, tokens, score.right, score.nll);
}

// Decoding decides their exact match; examples that cannot be decoded keep the answer of the whole sequence.
void QualityTrial::settle(const Model& model, size_t begin, const std::vector<std::pair<size_t, ExampleScore>>& close,
                          Measured& measured) const {
  std::vector<size_t> examples;
  for (const auto& [example, score] : close) examples.push_back(example);
  std::vector<Ids> made;
  try {
    made = written(model, facts_, data_, examples);
    measured.decoded = static_cast<int64_t>(made.size());
  } catch (const Error& e) {
    if (e.code() != ATTN_UNSUPPORTED) throw;
  }
  for (size_t c = 0; c < close.size(); ++c) {
    auto [example, score] = close[c];
    const Ids& wanted = data_[example].wanted;
    const auto tokens = static_cast<int64_t>(wanted.size());
    if (!made.empty()) score.right = made[c] == wanted ? tokens : std::min(score.right, tokens - 1);
    add(example, score, begin, measured);
  }
}

}  // namespace attnkit::core::search
