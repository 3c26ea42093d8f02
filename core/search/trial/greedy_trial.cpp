#include "core/search/trial/greedy_trial.hpp"

#include <algorithm>
#include <numeric>

#include "core/base/clock.hpp"
#include "core/base/greedy.hpp"
#include "core/search/batched_decoder.hpp"
#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

constexpr size_t max_rows = 32;
constexpr int resamples = 1000;
constexpr uint64_t seed = 1;

class Decoder : public BatchedDecoder {
 public:
  Decoder(const Model& model, const TaskFacts& facts, const DataSet& data, const std::vector<size_t>& order)
      : BatchedDecoder(facts),
        made(order.size()),
        model_(model),
        facts_(facts),
        data_(data),
        order_(order),
        needs_length_(asks_for_length(model)) {}

  std::vector<Ids> made;  // by place in the order, </s> included where it was reached

 private:
  std::optional<Active> open(size_t i) override {
    const Example& example = data_[order_[i]];
    Session session(model_, 1);
    // Before the source: the keys made from it may depend on the length.
    if (needs_length_) session.set_length(static_cast<double>(facts_.forced.size() + example.wanted.size()));
    read_source(session, facts_, example);
    const int64_t limit = default_limit(static_cast<int64_t>(example.rows), facts_.longest_target());
    return Active{i, std::move(session), facts_.info.begin_id, 0, static_cast<size_t>(limit)};
  }
  void done(Active& input) override {
    const auto forced = static_cast<std::ptrdiff_t>(std::min(facts_.forced.size(), input.made.size()));
    made[input.index].assign(input.made.begin() + forced, input.made.end());
  }
  [[noreturn]] void fail_at(size_t i, const Error& e) const override {
    throw Error(e.code(), fmt::format("{}: {}", data_.place_of(order_[i]), e.what()));
  }

  const Model& model_;
  const TaskFacts& facts_;
  const DataSet& data_;
  const std::vector<size_t>& order_;
  const bool needs_length_;
};

// Long inputs first: the last sessions to end are then short, and the batch stays full.
std::vector<size_t> longest_first(const DataSet& data, size_t begin, size_t end) {
  std::vector<size_t> order(end - begin);
  std::iota(order.begin(), order.end(), begin);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return data[i].rows; });
  return order;
}

}  // namespace

Greedy decode(const Model& model, const TaskFacts& facts, const DataSet& data, const std::vector<int64_t>& bounds,
              size_t begin, size_t end) {
  if (facts.task != Task::translation)
    fail(Fault::manifest, "greedy decoding needs a model with an encoder and a decoder: rank by another metric");
  if (begin > end || end > data.size())
    fail(Fault::usage, "examples {} to {}: the data set has {}", begin, end, data.size());
  Greedy greedy;
  greedy.sums.resize(bounds.size() + 1);
  const std::vector<size_t> order = longest_first(data, begin, end);
  const Clock::time_point start = Clock::now();
  Decoder decoder(model, facts, data, order);
  decoder.run(order.size(), max_rows);
  greedy.seconds = seconds_since(start);
  std::vector<Ids> made(end - begin);
  for (size_t i = 0; i < order.size(); ++i) made[order[i] - begin] = std::move(decoder.made[i]);
  greedy.outcomes.resize(end - begin);
  std::vector<BleuStats>& pairs = greedy.outcomes.pairs;
  BleuStats corpus;
  for (size_t i = begin; i < end; ++i) {
    const Example& example = data[i];
    const Ids& ids = made[i - begin];
    QualitySums& sums = greedy.sums[bucket_of(bounds, example.words)];
    ++sums.examples;
    const bool exact = ids == example.wanted;
    sums.exact += exact;
    const auto wanted = static_cast<int64_t>(example.wanted.size());
    greedy.outcomes.set(i - begin, wanted, exact ? wanted : 0, 0);
    greedy.tokens += static_cast<int64_t>(ids.size());
    pairs.push_back(bleu_stats(model.detokenize(Side::target, ids), model.detokenize(Side::target, example.wanted)));
    corpus += pairs.back();
  }
  greedy.bleu = bleu(corpus);
  greedy.bleu_interval = bleu_interval(pairs, resamples, seed);
  return greedy;
}

}  // namespace attnkit::core::search
