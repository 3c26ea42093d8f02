#include "core/search/trial_decode.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/search/failure.hpp"

namespace attnkit::search {
namespace {

constexpr size_t most_rows = 32;
constexpr int resamples = 1000;
constexpr uint64_t seed = 1;

// A list that is being decoded.
struct Active {
  size_t index;
  Session session;
  Ids made;
  size_t limit;
};

class Decoder {
 public:
  Decoder(const Model& model, const TaskFacts& facts, const DataSet& data, std::vector<size_t> order)
      : model_(model), facts_(facts), data_(data), order_(std::move(order)) {}

  // made(index, ids) once for every list, </s> included where it was reached.
  template <class Made>
  void run(Made&& made) {
    while (fill()) {
      write();
      for (size_t row = 0; row < active_.size(); ++row) choose(row);
      std::erase_if(active_, [&](const Active& a) {
        const bool over = a.made.back() == facts_.info.end_id || a.made.size() >= a.limit;
        if (over) made(a.index, a.made);
        return over;
      });
    }
  }

 private:
  bool fill();
  void write();
  void choose(size_t row);
  [[noreturn]] void blame(const Error& batch);
  [[noreturn]] void fail_at(size_t index, const Error& e) const {
    throw Error(e.code(), fmt::format("{}: {}", data_.place_of(index), e.what()));
  }

  const Model& model_;
  const TaskFacts& facts_;
  const DataSet& data_;
  const std::vector<size_t> order_;
  size_t next_ = 0;
  bool needs_length_ = false;
  std::vector<Active> active_;
  std::vector<attnkit_session*> handles_;
  std::vector<float> scores_;
  Batch tokens_;
};

// Keeps the batch full; false when nothing is left to do.
bool Decoder::fill() {
  for (; active_.size() < most_rows && next_ < order_.size(); ++next_) {
    const size_t index = order_[next_];
    const Example& list = data_[index];
    try {
      if (next_ == 0) needs_length_ = asks_for_length(model_);
      Session session(model_, 1);
      // Before the source: the keys made from it may depend on the length.
      if (needs_length_) session.set_length(static_cast<double>(list.wanted.size()));
      session.read(list.source);
      const size_t limit = std::min(static_cast<size_t>(facts_.info.max_length), list.source.size() * 3 / 2 + 20);
      active_.push_back({index, std::move(session), {}, limit});
    } catch (const Error& e) {
      fail_at(index, e);
    }
  }
  return !active_.empty();
}

void Decoder::write() {
  handles_.clear();
  tokens_.ids.clear();
  for (const Active& a : active_) {
    handles_.push_back(a.session.get());
    tokens_.ids.push_back(a.made.empty() ? facts_.info.begin_id : a.made.back());
  }
  tokens_.length = 1;
  tokens_.lengths.assign(active_.size(), 1);
  scores_.resize(active_.size() * static_cast<size_t>(facts_.info.outputs));
  try {
    Session::write(handles_, tokens_, scores_.data(), facts_.info.outputs);
  } catch (const Error& e) {
    blame(e);
  }
}

// A refused write changed no session, so writing them one by one finds whose fault it was.
void Decoder::blame(const Error& batch) {
  for (size_t row = 0; row < active_.size(); ++row) {
    const Ids token = {tokens_.ids[row]};
    try {
      Session::write({&handles_[row], 1}, Batch({&token, 1}));
    } catch (const Error& e) {
      fail_at(active_[row].index, e);
    }
  }
  fail_at(active_.front().index, batch);
}

void Decoder::choose(size_t row) {
  Active& a = active_[row];
  const float* scores = scores_.data() + row * static_cast<size_t>(facts_.info.outputs);
  const float* best = std::max_element(scores, scores + facts_.info.outputs);
  // A NaN compares false with everything, so max_element may pass over it.
  if (!std::all_of(scores, scores + facts_.info.outputs, [](float s) { return std::isfinite(s); }))
    throw Error(ATTN_INTERNAL, fmt::format("{}: the model's scores are not finite numbers after {} tokens: its weights "
                                           "or a mechanism are broken",
                                           data_.place_of(a.index), a.made.size()));
  a.made.push_back(static_cast<int32_t>(best - scores));
}

// Long inputs first: the last sessions to end are then short, and the batch stays full.
std::vector<size_t> longest_first(const DataSet& data, size_t begin, size_t end) {
  std::vector<size_t> order(end - begin);
  std::iota(order.begin(), order.end(), begin);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return data[a].source.size() > data[b].source.size(); });
  return order;
}

}  // namespace

Greedy decode(const Model& model, const TaskFacts& facts, const DataSet& data, const std::vector<int64_t>& bounds,
              size_t begin, size_t end) {
  if (facts.task != Task::translation)
    fail(Fault::manifest, "greedy decoding needs a model with an encoder and a decoder: rank by another metric");
  if (begin > end || end > data.size())
    fail(Fault::usage, "lists {} to {}: the data set has {}", begin, end, data.size());
  Greedy greedy;
  greedy.sums.resize(bounds.size() + 1);
  std::vector<Ids> made(end - begin);
  const auto start = std::chrono::steady_clock::now();
  Decoder(model, facts, data, longest_first(data, begin, end)).run([&](size_t index, const Ids& ids) {
    made[index - begin] = ids;
  });
  greedy.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::vector<BleuStats> pairs;
  BleuStats corpus;
  for (size_t i = begin; i < end; ++i) {
    const Example& list = data[i];
    const Ids& ids = made[i - begin];
    QualitySums& sums = greedy.sums[bucket_of(bounds, list.words)];
    ++sums.examples;
    sums.exact += ids == list.wanted;
    greedy.tokens += static_cast<int64_t>(ids.size());
    pairs.push_back(bleu_stats(model.detokenize(Side::target, ids), model.detokenize(Side::target, list.wanted)));
    corpus += pairs.back();
  }
  greedy.bleu = bleu(corpus);
  greedy.bleu_interval = bleu_interval(pairs, resamples, seed);
  return greedy;
}

}  // namespace attnkit::search
