#include "core/search/trial/greedy_trial.hpp"

#include <algorithm>
#include <numeric>

#include "core/base/decoding/greedy.hpp"
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
    if (facts_.takes_speech()) read_source(session, facts_, example);
    Active active{i, std::move(session), facts_.info.begin_id, 0, limit_of(facts_, example), example.source};
    if (facts_.sampling.looks_back()) active.sampler.emplace(facts_.sampling.greedy()).saw({&facts_.info.begin_id, 1});
    return active;
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

}  // namespace

size_t limit_of(const TaskFacts& facts, const Example& example) {
  const auto [limit, max_length] = facts.lengths;
  const int64_t most = limit > 0        ? std::min(limit, facts.longest_target())
                       : max_length > 0 ? std::max<int64_t>(1, max_length - 1)  // <s> is among them
                                        : default_limit(static_cast<int64_t>(example.rows), facts.longest_target());
  return static_cast<size_t>(most);
}

// Long inputs first: the last sessions to end are then short, and the batch stays full.
std::vector<Ids> written(const Model& model, const TaskFacts& facts, const DataSet& data,
                         std::vector<size_t> examples) {
  std::vector<size_t> places(examples.size()), order(examples.size());
  std::iota(places.begin(), places.end(), size_t{0});
  std::ranges::stable_sort(places, std::ranges::greater(), [&](size_t p) { return data[examples[p]].rows; });
  for (size_t i = 0; i < places.size(); ++i) order[i] = examples[places[i]];
  Decoder decoder(model, facts, data, order);
  decoder.run(order.size(), max_rows);
  std::vector<Ids> made(examples.size());
  for (size_t i = 0; i < places.size(); ++i) made[places[i]] = std::move(decoder.made[i]);
  return made;
}

Greedy decode(const Model& model, const TaskFacts& facts, const DataSet& data, const std::vector<int64_t>& bounds,
              size_t begin, size_t end, const std::vector<bool>& sure) {
  if (facts.task != Task::translation)
    fail(Fault::manifest, "greedy decoding needs a model with an encoder and a decoder: rank by another metric");
  if (begin > end || end > data.size())
    fail(Fault::usage, "examples {} to {}: the data set has {}", begin, end, data.size());
  Greedy greedy;
  greedy.sums.resize(bounds.size() + 1);
  std::vector<size_t> unsure;
  for (size_t i = begin; i < end; ++i)
    if (sure.empty() || !sure[i - begin]) unsure.push_back(i);
  const std::vector<Ids> made = written(model, facts, data, unsure);
  greedy.outcomes.resize(end - begin);
  std::vector<BleuStats>& pairs = greedy.outcomes.pairs;
  BleuStats corpus;
  size_t next = 0;
  for (size_t i = begin; i < end; ++i) {
    const Example& example = data[i];
    const Ids& ids = next < unsure.size() && unsure[next] == i ? made[next++] : example.wanted;
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
