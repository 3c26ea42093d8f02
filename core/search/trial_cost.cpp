#include "core/search/trial_cost.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <utility>

#include "core/search/failure.hpp"
#include "core/search/process_memory.hpp"
#include "core/search/statistics.hpp"

namespace attnkit::search {
namespace {

using Json = nlohmann::json;

// Tokens that are written one by one: enough for a median, few enough for long lengths.
constexpr int64_t most_steps = 32;
// Repetitions of whole lists: there are many tokens in each.
constexpr int most_real = 3;
// Prefills are repeated for about this long.
constexpr double prefill_seconds = 0.6;

// What a mechanism or a manifest does not do, as opposed to what went wrong.
bool is_refusal(const Error& e) { return e.code() == ATTN_UNSUPPORTED || e.code() == ATTN_INVALID; }

// Times of model and baseline, those of one repetition at the same place.
struct Pairs {
  std::vector<double> model, baseline;

  double throughput(size_t tokens) const {
    std::vector<double> values;
    for (double seconds : model) values.push_back(static_cast<double>(tokens) / seconds);
    return median(values);
  }
  std::vector<double> ratios() const {
    std::vector<double> values;
    for (size_t i = 0; i < model.size(); ++i) values.push_back(baseline[i] / model[i]);
    return values;
  }
};

// They swap places from one repetition to the next, so that going first is nobody's advantage.
template <class F, class G>
Pairs take_turns(int repetitions, F&& time_model, G&& time_baseline) {
  Pairs pairs;
  for (int r = 0; r < repetitions; ++r) {
    if (r % 2 == 0) pairs.model.push_back(time_model());
    pairs.baseline.push_back(time_baseline());
    if (r % 2 != 0) pairs.model.push_back(time_model());
  }
  return pairs;
}

template <class F>
auto as_baseline(F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(e.code(), std::string("the baseline: ") + e.what());
  }
}

}  // namespace

const Ids& CostTrial::ordinary(const Model& model, Side side) {
  Ids& ids = ordinary_[side];
  if (!ids.empty()) return ids;
  const int32_t all = side == Side::source ? facts_.info.source_vocab : facts_.info.target_vocab;
  // Texts leave special tokens out.
  for (int32_t id = 0; id < all; ++id)
    if (!model.detokenize(side, {&id, 1}).empty()) ids.push_back(id);
  if (ids.empty()) ids.push_back(facts_.info.end_id);
  return ids;
}

Ids CostTrial::random_ids(const Model& model, Side side, int64_t n) {
  const Ids& from = ordinary(model, side);
  std::mt19937 random(static_cast<uint32_t>(side) + 1);
  Ids ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = from[random() % from.size()];
  return ids;
}

ForcedTokens CostTrial::tokens_of(const Model& model, int64_t length) {
  ForcedTokens tokens;
  if (facts_.encoder()) tokens.source = random_ids(model, Side::source, length);
  if (!facts_.decoder()) return tokens;
  const Ids target = random_ids(model, Side::target, length);
  const auto steps = static_cast<std::ptrdiff_t>(std::clamp<int64_t>(length / 2, 1, most_steps));
  const Ids prompt(target.begin(), target.end() - steps);
  if (!prompt.empty()) tokens.prompt = Batch({&prompt, 1});
  tokens.steps.assign(target.end() - steps, target.end());
  return tokens;
}

// before: resident memory before the first length; lengths rise, so that each needs all the memory of those before it.
CostTrial::Start CostTrial::start(const Model& model, int64_t length, std::optional<uint64_t>& before) {
  Start start;
  start.tokens = tokens_of(model, length);
  const bool known = restart_peak();
  if (!before) before = resident_memory();
  try {
    start.session = std::make_unique<ForcedSession>(model, facts_, start.tokens);
    const std::optional<uint64_t> most = peak_resident_memory();
    if (known && before && most) start.peak = *most - std::min(*before, *most);
    start.session->steps(start.tokens);
  } catch (const Error& e) {
    if (!is_refusal(e)) throw;
    start.refused = e.what();
  }
  return start;
}

void CostTrial::open_baseline(const CostRequest& request) {
  const auto is_known = [&](int64_t length) { return baseline_->starts.count(length) > 0; };
  if (baseline_ && baseline_->toml == request.baseline &&
      std::all_of(request.lengths.begin(), request.lengths.end(), is_known))
    return;
  baseline_.reset();
  Baseline baseline{request.baseline, nullptr, {}};
  try {
    baseline.model = std::make_unique<Model>(runtime_, request.baseline, dir_);
  } catch (const Error& e) {
    // Not this placement's fault, whatever the reason.
    fail(Fault::internal, "the baseline: {}", e.what());
  }
  std::optional<uint64_t> before;
  for (int64_t length : request.lengths) baseline.starts[length] = start(*baseline.model, length, before);
  baseline_ = std::move(baseline);
}

void CostTrial::time_prefill(const Model& model, const Start& own, const Start& other, const CostRequest& request,
                             Json& entry) const {
  const bool alone = &own == &other;
  const double once = own.session->prefill_seconds() + (alone ? 0 : other.session->prefill_seconds());
  const int repetitions = std::min(request.repetitions, static_cast<int>(prefill_seconds / once));
  const auto time = [&](const Model& m, const Start& s) {
    return ForcedSession(m, facts_, s.tokens).prefill_seconds();
  };
  Pairs pairs = take_turns(
      repetitions, [&] { return time(model, own); }, [&] { return alone ? 0 : time(*baseline_->model, other); });
  if (repetitions == 0) pairs = {{own.session->prefill_seconds()}, {other.session->prefill_seconds()}};
  entry["prefill"] = pairs.throughput(own.tokens.prefilled());
  entry["prefill_ratio"] = alone ? 1 : median(pairs.ratios());
  entry["prefill_repetitions"] = repetitions;
}

void CostTrial::time_steps(const Start& own, const Start& other, const CostRequest& request, Json& entry) const {
  const bool alone = &own == &other;
  std::vector<double> latencies;
  // A token that something else on the machine held up says nothing of the model, so the median token stands for all.
  const Pairs pairs = take_turns(
      request.repetitions,
      [&] {
        const std::vector<double> steps = own.session->steps(own.tokens);
        latencies.insert(latencies.end(), steps.begin(), steps.end());
        return median(steps);
      },
      [&] { return alone ? 0 : as_baseline([&] { return median(other.session->steps(other.tokens)); }); });
  const std::vector<double> ratios = alone ? std::vector<double>{1} : pairs.ratios();
  entry["decode"] = pairs.throughput(1);
  entry["decode_ratio"] = median(ratios);
  entry["decode_ratio_low"] = quantile(ratios, 0.25);
  entry["decode_ratio_high"] = quantile(ratios, 0.75);
  entry["latency"] = median(latencies);
  entry["latency_p95"] = quantile(latencies, 0.95);
}

Json CostTrial::at(const Model& model, int64_t length, const CostRequest& request, std::optional<uint64_t>& before) {
  const Start& other = baseline_->starts.at(length);
  const bool alone = &model == baseline_->model.get();
  const Start made = alone ? Start() : start(model, length, before);
  const Start& own = alone ? other : made;
  Json entry = {{"length", length}};
  if (!own.refused.empty() || !other.refused.empty()) {
    entry["refused"] = own.refused.empty() ? "the baseline: " + other.refused : own.refused;
    return entry;
  }
  if (request.prefill || !facts_.decoder()) time_prefill(model, own, other, request, entry);
  if (facts_.decoder()) time_steps(own, other, request, entry);
  entry["peak_bytes"] = own.peak ? Json(*own.peak) : Json();
  entry["baseline_peak_bytes"] = other.peak ? Json(*other.peak) : Json();
  return entry;
}

double CostTrial::whole_seconds(const Model& model, const std::vector<ForcedTokens>& inputs) const {
  double seconds = 0;
  for (const ForcedTokens& tokens : inputs) {
    const ForcedSession session(model, facts_, tokens);
    const std::vector<double> steps = session.steps(tokens);
    seconds += std::accumulate(steps.begin(), steps.end(), session.prefill_seconds());
  }
  return seconds;
}

Json CostTrial::real(const Model& model, const CostRequest& request) const {
  std::vector<size_t> order(data_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Evenly spaced quantiles of length.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return data_[a].words < data_[b].words; });
  const size_t pairs = std::min(request.real, order.size());
  std::vector<ForcedTokens> inputs;
  size_t tokens = 0;
  for (size_t i = 0; i < pairs; ++i) {
    const List& list = data_[order[(2 * i + 1) * order.size() / (2 * pairs)]];
    inputs.push_back({list.source, Batch(), list.target});
    tokens += list.target.size();
  }
  const bool alone = &model == baseline_->model.get();
  whole_seconds(model, {inputs.front()});
  const Pairs times = take_turns(
      std::min(request.repetitions, most_real), [&] { return whole_seconds(model, inputs); },
      [&] { return alone ? 0 : as_baseline([&] { return whole_seconds(*baseline_->model, inputs); }); });
  const std::vector<double> ratios = alone ? std::vector<double>{1} : times.ratios();
  return {{"decode", times.throughput(tokens)},
          {"ratio", median(ratios)},
          {"ratio_low", quantile(ratios, 0.25)},
          {"ratio_high", quantile(ratios, 0.75)}};
}

Json CostTrial::run(const CostRequest& request) {
  if (request.repetitions < 1) fail(Fault::usage, "{} repetitions: at least 1 is needed", request.repetitions);
  for (int64_t length : request.lengths)
    if (length < 1) fail(Fault::usage, "length {}: at least 1 is needed", length);
  CostRequest rising = request;
  std::sort(rising.lengths.begin(), rising.lengths.end());
  open_baseline(rising);
  std::optional<Model> own;
  if (request.toml != request.baseline) own.emplace(runtime_, request.toml, dir_);
  const Model& model = own ? *own : *baseline_->model;
  Json result = {{"at", Json::array()}};
  std::optional<uint64_t> before;
  for (int64_t length : rising.lengths) result["at"].push_back(at(model, length, rising, before));
  if (request.real == 0 || !facts_.decoder()) return result;
  try {
    result["real"] = real(model, rising);
  } catch (const Error& e) {
    if (!is_refusal(e)) throw;
    result["real"] = {{"refused", e.what()}};
  }
  return result;
}

}  // namespace attnkit::search
