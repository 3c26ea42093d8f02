#include "hosts/cli/decode/score.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/decoding/scores.hpp"
#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/interrupt.hpp"

namespace attnkit::cli {
namespace {

constexpr size_t max_logits = size_t{1} << 26;

// Rows that run together, fewer when their logits would be too many.
size_t rows_of(size_t batch, size_t left, const Facts& facts) {
  const size_t row = facts.max_length() * static_cast<size_t>(facts.info.outputs);
  return std::min({batch, left, std::max<size_t>(1, max_logits / std::max<size_t>(1, row))});
}

[[noreturn]] void fail_with_nan(const Input& input) {
  fail(Exit::numerical, "{}: the model's scores are not numbers (NaN): its weights or a mechanism are broken",
       input.origin);
}

// logits: those that predict the reference, row by row.
Score score_of(const Facts& facts, const Input& input, const float* logits) {
  const auto width = static_cast<size_t>(facts.info.outputs);
  Score score;
  for (size_t i = 0; i <= input.target.size(); ++i) {
    const std::span<const float> scores(logits + i * width, width);
    const int32_t id = i < input.target.size() ? input.target[i] : facts.info.end_id;
    score.nll += log_sum(scores) - scores[static_cast<size_t>(id)];
    ++score.tokens;
  }
  if (std::isnan(score.nll)) fail_with_nan(input);
  return score;
}

std::vector<const Input*> each(std::span<const Input> inputs) {
  std::vector<const Input*> all;
  for (const Input& input : inputs) all.push_back(&input);
  return all;
}

// Sources of some inputs side by side, run by forward.
void forward(const Model& model, const Facts& facts, const std::vector<const Input*>& inputs, const Batch& target,
             const attn_tensor& out) {
  if (facts.speech) {
    std::vector<std::vector<float>> samples;
    for (const Input* input : inputs) samples.push_back(recorded(facts, *input));
    return model.forward(SpeechBatch(samples), target, out);
  }
  std::vector<Ids> ids;
  if (facts.encoder())
    for (const Input* input : inputs) ids.push_back(input->ids);
  model.forward(Batch(ids), target, out);
}

Label label_of(const Facts& facts, const Input& input, const float* scores) {
  const auto width = static_cast<size_t>(facts.info.outputs);
  Label label{};
  for (size_t i = 0; i < (facts.classifier() ? 1 : input.ids.size() - 1); ++i) {
    const std::span<const float> row(scores + i * width, width);
    const std::optional<int32_t> best = best_token(row);
    if (!best) fail_with_nan(input);
    label.best = *best;
    label.ids.push_back(label.best);
    if (!facts.classifier()) continue;
    const double norm = log_sum(row);
    for (const float s : row) label.scores.push_back(std::exp(s - norm));
  }
  return label;
}

}  // namespace

double Score::perplexity() const { return std::exp(nll / static_cast<double>(tokens)); }

std::vector<Score> score_references(const Model& model, const Facts& facts, std::span<const Input> inputs,
                                    size_t batch) {
  std::vector<Score> scores;
  while (scores.size() < inputs.size()) {
    check_interrupt();
    const auto some = inputs.subspan(scores.size(), rows_of(batch, inputs.size() - scores.size(), facts));
    std::vector<Ids> targets;
    for (const Input& input : some) {
      targets.push_back(facts.encoder() ? facts.before_target() : input.ids);
      targets.back().insert(targets.back().end(), input.target.begin(), input.target.end());
    }
    const Batch target(targets);
    const search::Scores logits(facts, target.rows(), target.length);
    forward(model, facts, each(some), target, logits.out);
    for (size_t i = 0; i < some.size(); ++i) {
      // Predicts the first token of the reference.
      const size_t first = (facts.encoder() ? facts.before_target().size() : some[i].ids.size()) - 1;
      scores.push_back(score_of(facts, some[i], logits.row(i) + first * static_cast<size_t>(logits.width)));
    }
  }
  return scores;
}

void label_inputs(const Model& model, const Facts& facts, std::span<const Input> inputs, size_t batch,
                  const std::function<void(size_t, const Label&)>& done) {
  if (facts.speech && !facts.pools())
    fail(Exit::usage, "this encoder of speech has neither classes nor a decoder: there is nothing to write");
  for (size_t first = 0; first < inputs.size();) {
    check_interrupt();
    const size_t rows = rows_of(batch, inputs.size() - first, facts);
    const std::span<const Input> some = inputs.subspan(first, rows);
    size_t length = 0;
    for (const Input& input : some) length = std::max(length, input.ids.size());
    const search::Scores scores(facts, static_cast<int64_t>(rows), static_cast<int64_t>(length));
    forward(model, facts, each(some), Batch(), scores.out);
    for (size_t i = 0; i < rows; ++i, ++first) done(first, label_of(facts, inputs[first], scores.row(i)));
  }
}

void embed_inputs(const Model& model, const Facts& facts, std::span<const Input> inputs, size_t batch,
                  const std::function<void(size_t, std::span<const float>)>& done) {
  // Inputs of like length run together: little of a batch is padding then.
  std::vector<const Input*> order = each(inputs);
  std::ranges::stable_sort(order, {}, [&](const Input* input) { return source_length(facts, *input); });
  for (size_t first = 0; first < order.size(); first += batch) {
    check_interrupt();
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<const Input*> some(begin,
                                         begin + static_cast<std::ptrdiff_t>(std::min(batch, order.size() - first)));
    const search::Scores vectors(facts, static_cast<int64_t>(some.size()), 1);
    forward(model, facts, some, Batch(), vectors.out);
    for (size_t i = 0; i < some.size(); ++i) {
      const std::span<const float> vector(vectors.row(i), static_cast<size_t>(vectors.width));
      if (!std::ranges::all_of(vector, [](float x) { return std::isfinite(x); })) fail_with_nan(*some[i]);
      done(static_cast<size_t>(some[i] - inputs.data()), vector);
    }
  }
}

}  // namespace attnkit::cli
