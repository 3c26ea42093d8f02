#include "core/search/trial_cost.hpp"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <utility>

#include "core/search/failure.hpp"
#include "core/search/statistics.hpp"

namespace attnkit::search {
namespace {

using Json = nlohmann::json;

// Tokens that are written one by one: enough for a median, few enough for long lengths.
constexpr int64_t most_steps = 32;

// Restarts the system's account of the most memory resident at once; false where it is not allowed.
bool reset_peak() {
  // The allocator gives back what is free, or the run would use that without growing.
  malloc_trim(0);
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return static_cast<bool>(file);
}

// A field of /proc/self/status, such as "VmRSS:", in bytes.
std::optional<uint64_t> status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  uint64_t kib = 0;
  for (std::string word; file >> word;)
    if (word == field && file >> kib) return kib * 1024;
  return std::nullopt;
}

// What a mechanism or a manifest does not do, as opposed to what went wrong.
bool is_refusal(const Error& e) { return e.code() == ATTN_UNSUPPORTED || e.code() == ATTN_INVALID; }

using Time = std::chrono::steady_clock::time_point;

// Seconds since `last`, which becomes now.
double lap(Time& last) {
  const Time now = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(now - std::exchange(last, now)).count();
}

}  // namespace

// One input.
struct CostTrial::Work {
  Ids source;    // read, or run through an encoder alone; may be empty
  Batch prompt;  // one row, written at once; may be empty
  Ids forced;    // written one by one
};

// Of one repetition, in seconds.
struct CostTrial::Times {
  double prefill = 0, decode = 0, whole = 0;
  std::vector<double> steps;
};

// The repetitions, by place those of model and baseline that belong together.
struct CostTrial::Pairs {
  std::vector<Times> model, baseline;

  // Tokens per second of the model; time: a member of Times.
  double throughput(size_t tokens, double Times::*time) const {
    std::vector<double> values;
    for (const Times& t : model) values.push_back(static_cast<double>(tokens) / (t.*time));
    return median(values);
  }
  // By repetition the throughput of the model over that of the baseline.
  std::vector<double> ratios(double Times::*time) const {
    std::vector<double> values;
    for (size_t i = 0; i < model.size(); ++i) values.push_back(baseline[i].*time / (model[i].*time));
    return values;
  }
};

// One input on one model; holds what the model holds for it.
class CostTrial::Pass {
 public:
  Pass(const Model& model, const Facts& facts) : model_(model), facts_(facts) {}

  void run(const Work& work, Times& times) {
    facts_.decoder() ? decode(work, times) : encode(work, times);
    times.whole = times.prefill + times.decode;
  }

 private:
  void encode(const Work& work, Times& times) {
    const Batch source({&work.source, 1});
    const int64_t width = facts_.info.outputs, length = source.length;
    const bool is_class = facts_.task == Task::classification;
    scores_.resize(static_cast<size_t>(is_class ? width : length * width));
    const attn_tensor out = is_class ? tensor(scores_.data(), {1, width}) : tensor(scores_.data(), {1, length, width});
    Time last = std::chrono::steady_clock::now();
    model_.forward(source, Batch(), out);
    times.prefill += lap(last);
  }

  void decode(const Work& work, Times& times) {
    const Ids one = {0};
    Batch token({&one, 1});
    Time last = std::chrono::steady_clock::now();
    session_.emplace(model_, 1);
    attnkit_session* const self = session_->get();
    // Known before the source is read, so that no prediction decides whether the tokens to come are allowed.
    session_->set_length(static_cast<double>(work.prompt.length + static_cast<int64_t>(work.forced.size())));
    if (!work.source.empty()) session_->read(work.source);
    if (work.prompt.length > 0) Session::write({&self, 1}, work.prompt);
    times.prefill += lap(last);
    for (int32_t id : work.forced) {
      token.ids[0] = id;
      Session::write({&self, 1}, token);
      times.steps.push_back(lap(last));
      times.decode += times.steps.back();
    }
  }

  const Model& model_;
  const Facts& facts_;
  std::optional<Session> session_;
  std::vector<float> scores_;
};

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

CostTrial::Work CostTrial::work_of(const Model& model, int64_t length) {
  Work work;
  if (facts_.encoder()) work.source = random_ids(model, Side::source, length);
  if (!facts_.decoder()) return work;
  const Ids target = random_ids(model, Side::target, length);
  const auto steps = static_cast<std::ptrdiff_t>(std::clamp<int64_t>(length / 2, 1, most_steps));
  const Ids prompt(target.begin(), target.end() - steps);
  if (!prompt.empty()) work.prompt = Batch({&prompt, 1});
  work.forced.assign(target.end() - steps, target.end());
  return work;
}

// Lengths rise, so that each run needs all the memory of those before it, and growth since before the first is its own.
CostTrial::Peaks CostTrial::peaks_of(const Model& fresh, std::vector<int64_t> lengths) {
  Peaks peaks;
  std::sort(lengths.begin(), lengths.end());
  std::optional<uint64_t> before;
  for (int64_t length : lengths) {
    std::optional<uint64_t>& peak = peaks[length];
    const Work work = work_of(fresh, length);
    Times times;
    const bool known = reset_peak();
    if (!before) before = status("VmRSS:");
    Pass pass(fresh, facts_);
    try {
      pass.run(work, times);
    } catch (const Error& e) {
      if (!is_refusal(e)) throw;
      continue;
    }
    const std::optional<uint64_t> most = status("VmHWM:");
    if (known && before && most) peak = *most - std::min(*before, *most);
  }
  return peaks;
}

void CostTrial::open_baseline(const CostRequest& request) {
  const auto is_known = [&](int64_t length) { return baseline_->peaks.count(length) > 0; };
  if (baseline_ && baseline_->toml == request.baseline &&
      std::all_of(request.lengths.begin(), request.lengths.end(), is_known))
    return;
  baseline_.reset();
  std::unique_ptr<Model> model;
  try {
    model = std::make_unique<Model>(runtime_, request.baseline, dir_);
  } catch (const Error& e) {
    // Not this placement's fault, whatever the reason.
    fail(Fault::internal, "the baseline: {}", e.what());
  }
  const Peaks peaks = peaks_of(*model, request.lengths);
  baseline_ = Baseline{request.baseline, std::move(model), peaks};
}

CostTrial::Pairs CostTrial::measure(const Model& model, const std::vector<Work>& works, int repetitions) const {
  const auto once = [&](const Model& m) {
    Times times;
    for (const Work& work : works) Pass(m, facts_).run(work, times);
    return times;
  };
  const auto of_baseline = [&] {
    try {
      return once(*baseline_->model);
    } catch (const Error& e) {
      throw Error(e.code(), std::string("the baseline: ") + e.what());
    }
  };
  once(model);
  of_baseline();
  Pairs pairs;
  for (int r = 0; r < repetitions; ++r) {
    if (r % 2 == 0) pairs.model.push_back(once(model));
    pairs.baseline.push_back(of_baseline());
    if (r % 2 != 0) pairs.model.push_back(once(model));
  }
  return pairs;
}

Json CostTrial::at(const Model& model, int64_t length, int repetitions) {
  const Work work = work_of(model, length);
  const Pairs pairs = measure(model, {work}, repetitions);
  Json result = {{"length", length},
                 {"prefill", pairs.throughput(work.source.size() + work.prompt.ids.size(), &Times::prefill)},
                 {"prefill_ratio", median(pairs.ratios(&Times::prefill))}};
  if (work.forced.empty()) return result;
  const std::vector<double> ratios = pairs.ratios(&Times::decode);
  std::vector<double> latencies;
  for (const Times& t : pairs.model) latencies.insert(latencies.end(), t.steps.begin(), t.steps.end());
  result["decode"] = pairs.throughput(work.forced.size(), &Times::decode);
  result["decode_ratio"] = median(ratios);
  result["decode_ratio_low"] = quantile(ratios, 0.25);
  result["decode_ratio_high"] = quantile(ratios, 0.75);
  result["latency"] = median(latencies);
  result["latency_p95"] = quantile(latencies, 0.95);
  return result;
}

Json CostTrial::real(const Model& model, size_t pairs, int repetitions) const {
  std::vector<size_t> order(data_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Evenly spaced quantiles of length.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return data_[a].words < data_[b].words; });
  pairs = std::min(pairs, order.size());
  std::vector<Work> works;
  size_t tokens = 0;
  for (size_t i = 0; i < pairs; ++i) {
    const List& list = data_[order[(2 * i + 1) * order.size() / (2 * pairs)]];
    works.push_back({list.source, Batch(), list.target});
    tokens += list.target.size();
  }
  const Pairs times = measure(model, works, repetitions);
  const std::vector<double> ratios = times.ratios(&Times::whole);
  return {{"decode", times.throughput(tokens, &Times::whole)},
          {"ratio", median(ratios)},
          {"ratio_low", quantile(ratios, 0.25)},
          {"ratio_high", quantile(ratios, 0.75)}};
}

Json CostTrial::run(const CostRequest& request) {
  if (request.repetitions < 1) fail(Fault::usage, "{} repetitions: at least 1 is needed", request.repetitions);
  for (int64_t length : request.lengths)
    if (length < 1) fail(Fault::usage, "length {}: at least 1 is needed", length);
  const auto unless_refused = [](Json entry, auto&& measured) {
    try {
      entry.update(measured());
    } catch (const Error& e) {
      if (!is_refusal(e)) throw;
      entry["refused"] = e.what();
    }
    return entry;
  };
  open_baseline(request);
  const Model model(runtime_, request.toml, dir_);
  const Peaks peaks = peaks_of(model, request.lengths);
  const auto bytes = [](const Peaks& of, int64_t length) { return of.at(length) ? Json(*of.at(length)) : Json(); };
  Json result = {{"at", Json::array()}};
  for (int64_t length : request.lengths) {
    Json entry = unless_refused({{"length", length}}, [&] { return at(model, length, request.repetitions); });
    if (!entry.contains("refused")) {
      entry["peak_bytes"] = bytes(peaks, length);
      entry["baseline_peak_bytes"] = bytes(baseline_->peaks, length);
    }
    result["at"].push_back(std::move(entry));
  }
  if (request.real > 0 && facts_.decoder())
    result["real"] = unless_refused(Json::object(), [&] { return real(model, request.real, request.repetitions); });
  return result;
}

}  // namespace attnkit::search
