#include "core/search/trial/cost_trial.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>

#include "core/base/clock.hpp"
#include "core/search/failure.hpp"
#include "core/search/statistics.hpp"
#include "core/search/worker/process_memory.hpp"

namespace attnkit::core::search {
namespace {

using Json = nlohmann::json;

// Tokens that are written one by one: enough for a median, few enough for long lengths.
constexpr int64_t max_steps = 32;
// Repetitions of whole examples: there are many tokens in each.
constexpr int max_real = 3;
// Prefills are repeated for about this long.
constexpr double prefill_seconds = 0.6;

// A mechanism or a manifest refuses, as opposed to something that went wrong.
bool is_refusal(const Error& e) { return e.code() == ATTN_UNSUPPORTED || e.code() == ATTN_INVALID; }

// Seconds since `last`, which becomes now.
double lap(Clock::time_point& last) {
  const Clock::time_point now = Clock::now();
  return std::chrono::duration<double>(now - std::exchange(last, now)).count();
}

// Tokens of one session, or of one pass of an encoder alone.
struct ForcedTokens {
  Example source;  // read, or run through an encoder alone; rows 0: there is none
  Batch prompt;    // one row, written at once; may be empty
  Ids steps;       // written one by one
};

// A session that has read the source and written the prompt; of an encoder alone nothing is kept.
class ForcedSession {
 public:
  // Runs the prefill.  Throws Error.
  ForcedSession(const Model& model, const TaskFacts& facts, const ForcedTokens& tokens) {
    if (!facts.decoder()) {
      const Scores scores(facts, 1, static_cast<int64_t>(tokens.source.rows));
      const Batch text({&tokens.source.source, 1});
      const SpeechBatch speech({&tokens.source.frames, 1}, facts.info.features);
      Clock::time_point last = Clock::now();
      facts.takes_speech() ? model.forward(speech, Batch(), scores.out) : model.forward(text, Batch(), scores.out);
      prefill_seconds_ = lap(last);
      return;
    }
    Clock::time_point last = Clock::now();
    session_.emplace(model, 1);
    attnkit_session* const self = session_->get();
    // Known before the source is read, so that no prediction decides whether the tokens to come are allowed.
    session_->set_length(static_cast<double>(tokens.prompt.length + static_cast<int64_t>(tokens.steps.size())));
    if (tokens.source.rows > 0) read_source(*session_, facts, tokens.source);
    if (tokens.prompt.length > 0) Session::write({&self, 1}, tokens.prompt);
    prefill_seconds_ = lap(last);
  }

  double prefill_seconds() const { return prefill_seconds_; }

  // Writes the steps to a copy of the session, so that it can be repeated; seconds of each.  The copy is not timed.
  std::vector<double> steps(const ForcedTokens& tokens) const {
    std::vector<double> seconds;
    if (!session_) return seconds;
    const Session copy = session_->clone();
    attnkit_session* const self = copy.get();
    const Ids one = {0};
    Batch token({&one, 1});
    Clock::time_point last = Clock::now();
    for (int32_t id : tokens.steps) {
      token.ids[0] = id;
      Session::write({&self, 1}, token);
      seconds.push_back(lap(last));
    }
    return seconds;
  }

 private:
  std::optional<Session> session_;
  double prefill_seconds_ = 0;
};

// A session at one length and what making it took, or why it cannot be.
struct Start {
  ForcedTokens tokens;
  std::unique_ptr<ForcedSession> session;
  std::optional<uint64_t> peak;
  std::string refused;
};

// Throughputs of the model by repetition, and ratios to the baseline's.
struct Timings {
  std::vector<double> throughput, ratio, baseline;
};

// Seconds of model and baseline, which swap places from one repetition to the next, so that going first is nobody's
// advantage.  single: the model is the baseline and is timed once, with ratio 1.
template <class F, class G>
Timings take_turns(int repetitions, size_t tokens, bool single, F&& time_model, G&& time_baseline) {
  Timings timings;
  for (int r = 0; r < repetitions; ++r) {
    double model = r % 2 == 0 ? time_model() : 0;
    const double baseline = single ? 0 : time_baseline();
    if (r % 2 != 0) model = time_model();
    timings.throughput.push_back(static_cast<double>(tokens) / model);
    timings.ratio.push_back(single ? 1 : baseline / model);
    timings.baseline.push_back(single ? timings.throughput.back() : static_cast<double>(tokens) / baseline);
  }
  return timings;
}

template <class F>
auto as_baseline(F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(e.code(), std::string("the baseline: ") + e.what());
  }
}

// Ids that are no special tokens, which texts leave out.
Ids ordinary_ids(const Model& model, Side side, const attnkit_model_info& info) {
  Ids ids;
  for (int32_t id = 0; id < (side == Side::source ? info.source_vocab : info.target_vocab); ++id)
    if (!model.detokenize(side, {&id, 1}).empty()) ids.push_back(id);
  if (ids.empty()) ids.push_back(info.end_id);
  return ids;
}

Ids random_ids(const Ids& from, Side side, int64_t n) {
  std::mt19937 random(static_cast<uint32_t>(side) + 1);
  Ids ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = from[random() % from.size()];
  return ids;
}

}  // namespace

struct CostTrial::Baseline {
  void open(const std::vector<int64_t>& lengths) {
    if (facts_.encoder() && !facts_.takes_speech()) source_ids = ordinary_ids(model, Side::source, facts_.info);
    if (facts_.decoder()) target_ids = ordinary_ids(model, Side::target, facts_.info);
    if (!lengths.empty()) {  // what a process takes once is nobody's memory
      const Model first(runtime, toml, dir);
      std::optional<uint64_t> before;
      start(first, lengths.front(), before);
    }
    // As of every other placement, whose sessions do not stay.
    std::optional<uint64_t> before;
    std::map<int64_t, std::optional<uint64_t>> peaks;
    for (int64_t length : lengths) peaks[length] = start(model, length, before).peak;
    for (int64_t length : lengths) {
      starts[length] = start(model, length, before);
      starts[length].peak = peaks[length];
    }
  }

  bool serves(const CostRequest& request) const {
    const auto is_known = [&](int64_t length) { return starts.contains(length); };
    return toml == request.baseline && std::ranges::all_of(request.lengths, is_known);
  }

  // So many random tokens, or rows of the data set's speech, from its beginning again where it ends.
  Example source_of(int64_t length) const {
    Example source;
    source.rows = static_cast<size_t>(length);
    if (!facts_.takes_speech()) {
      source.source = random_ids(source_ids, Side::source, length);
      return source;
    }
    const size_t numbers = facts_.speech_numbers(length);
    for (size_t i = 0; source.frames.size() < numbers; i = (i + 1) % data_.size())
      source.frames.insert(source.frames.end(), data_[i].frames.begin(), data_[i].frames.end());
    source.frames.resize(numbers);
    return source;
  }

  ForcedTokens tokens_of(int64_t length) const {
    ForcedTokens tokens;
    if (facts_.encoder()) tokens.source = source_of(length);
    if (!facts_.decoder()) return tokens;
    const Ids target = random_ids(target_ids, Side::target, length);
    const auto steps = static_cast<std::ptrdiff_t>(std::clamp<int64_t>(length / 2, 1, max_steps));
    const Ids prompt(target.begin(), target.end() - steps);
    if (!prompt.empty()) tokens.prompt = Batch({&prompt, 1});
    tokens.steps.assign(target.end() - steps, target.end());
    return tokens;
  }

  // before: resident memory before the first length; lengths rise, so that each needs all the memory of those before
  // it.
  Start start(const Model& of, int64_t length, std::optional<uint64_t>& before) const {
    Start start;
    start.tokens = tokens_of(length);
    const bool known = facts_.gpu.empty() && restart_peak();  // a GPU's memory is none of the process
    if (!before) before = resident_memory();
    try {
      start.session = std::make_unique<ForcedSession>(of, facts_, start.tokens);
      const std::optional<uint64_t> peak = peak_resident_memory();
      if (known && before && peak) start.peak = *peak - std::min(*before, *peak);
      start.session->steps(start.tokens);
    } catch (const Error& e) {
      if (!is_refusal(e)) throw;
      start.refused = e.what();
    }
    return start;
  }

  // The entry of one length.
  Json at(const Model& of, int64_t length, const CostRequest& request, std::optional<uint64_t>& before) const {
    const Start& other = starts.at(length);
    const Start made = &of == &model ? Start() : start(of, length, before);
    const Start& own = &of == &model ? other : made;
    Json entry = {{"length", length}};
    if (!own.refused.empty() || !other.refused.empty()) {
      entry["refused"] = own.refused.empty() ? "the baseline: " + other.refused : own.refused;
      return entry;
    }
    if (request.prefill || !facts_.decoder()) time_prefill(of, own, other, request, entry);
    if (facts_.decoder()) time_steps(own, other, request, entry);
    entry["peak_bytes"] = own.peak ? Json(*own.peak) : Json();
    entry["baseline_peak_bytes"] = other.peak ? Json(*other.peak) : Json();
    return entry;
  }

  void time_prefill(const Model& of, const Start& own, const Start& other, const CostRequest& request,
                    Json& entry) const {
    const bool single = &own == &other;
    const double once = own.session->prefill_seconds() + (single ? 0 : other.session->prefill_seconds());
    // Of a decoder it is the smaller part.
    const int repetitions = facts_.decoder() ? std::min(request.repetitions, static_cast<int>(prefill_seconds / once))
                                             : request.repetitions;
    // Without a repetition the run that the memory was measured in counts.
    const auto time = [&](const Model& m, const Start& s) {
      return repetitions == 0 ? s.session->prefill_seconds() : ForcedSession(m, facts_, s.tokens).prefill_seconds();
    };
    const size_t tokens = own.tokens.source.rows + own.tokens.prompt.ids.size();
    const Timings timings = take_turns(
        std::max(repetitions, 1), tokens, single, [&] { return time(of, own); }, [&] { return time(model, other); });
    entry["prefill"] = median(timings.throughput);
    entry["prefill_ratio"] = median(timings.ratio);
    entry["baseline_prefill"] = median(timings.baseline);
    entry["prefill_repetitions"] = repetitions;
  }

  void time_steps(const Start& own, const Start& other, const CostRequest& request, Json& entry) const {
    std::vector<double> latencies;
    // A token that something else on the machine held up says nothing of the model, so the median token stands for all.
    const auto time_model = [&] {
      const std::vector<double> steps = own.session->steps(own.tokens);
      latencies.insert(latencies.end(), steps.begin(), steps.end());
      return median(steps);
    };
    const auto time_baseline = [&] { return as_baseline([&] { return median(other.session->steps(other.tokens)); }); };
    const Timings timings = take_turns(request.repetitions, 1, &own == &other, time_model, time_baseline);
    entry["decode"] = median(timings.throughput);
    entry["decode_ratio"] = median(timings.ratio);
    entry["baseline_decode"] = median(timings.baseline);
    entry["decode_ratio_low"] = quantile(timings.ratio, 0.25);
    entry["decode_ratio_high"] = quantile(timings.ratio, 0.75);
    entry["latency"] = median(latencies);
    entry["latency_p95"] = quantile(latencies, 0.95);
  }

  // Pairs of the data set at evenly spaced quantiles of length.
  Json real(const Model& of, const CostRequest& request) const {
    std::vector<size_t> order(data_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t i) { return data_[i].words; });
    const size_t pairs = std::min(request.real, order.size());
    std::vector<ForcedTokens> inputs;
    size_t tokens = 0;
    for (size_t i = 0; i < pairs; ++i) {
      const Example& example = data_[order[(2 * i + 1) * order.size() / (2 * pairs)]];
      inputs.push_back({example, Batch(), example.target});
      tokens += example.target.size();
    }
    const auto seconds = [&](const Model& m, std::span<const ForcedTokens> all) {
      double sum = 0;
      for (const ForcedTokens& one : all) {
        const ForcedSession session(m, facts_, one);
        const std::vector<double> steps = session.steps(one);
        sum += std::accumulate(steps.begin(), steps.end(), session.prefill_seconds());
      }
      return sum;
    };
    seconds(of, {inputs.data(), 1});
    const Timings timings = take_turns(
        std::min(request.repetitions, max_real), tokens, &of == &model, [&] { return seconds(of, inputs); },
        [&] { return as_baseline([&] { return seconds(model, inputs); }); });
    return {{"decode", median(timings.throughput)},
            {"ratio", median(timings.ratio)},
            {"ratio_low", quantile(timings.ratio, 0.25)},
            {"ratio_high", quantile(timings.ratio, 0.75)}};
  }

  const TaskFacts& facts_;
  const DataSet& data_;
  const Runtime& runtime;
  const std::string& dir;
  const std::string toml;
  const Model model;
  Ids source_ids = {}, target_ids = {};  // that are no special tokens
  std::map<int64_t, Start> starts = {};  // kept: the prefill of a long length takes long
};

CostTrial::CostTrial(const Runtime& runtime, std::string dir, const DataSet& data, const TaskFacts& facts)
    : runtime_(runtime), dir_(std::move(dir)), data_(data), facts_(facts) {}

CostTrial::~CostTrial() = default;

Json CostTrial::run(const CostRequest& request) {
  if (request.repetitions < 1) fail(Fault::usage, "{} repetitions: at least 1 is needed", request.repetitions);
  for (int64_t length : request.lengths)
    if (length < 1) fail(Fault::usage, "length {}: at least 1 is needed", length);
  CostRequest rising = request;
  std::ranges::sort(rising.lengths);
  if (!baseline_ || !baseline_->serves(rising)) {
    baseline_.reset();
    std::unique_ptr<Baseline> baseline;
    try {
      baseline.reset(
          new Baseline{facts_, data_, runtime_, dir_, request.baseline, Model(runtime_, request.baseline, dir_)});
    } catch (const Error& e) {
      // Not this placement's fault, whatever the reason.
      fail(Fault::internal, "the baseline: {}", e.what());
    }
    baseline->open(rising.lengths);
    baseline_ = std::move(baseline);
  }
  std::optional<Model> own;
  if (request.itself || request.toml != request.baseline) own.emplace(runtime_, request.toml, dir_);
  const Model& model = own ? *own : baseline_->model;
  Json result = {{"at", Json::array()}};
  std::optional<uint64_t> before;
  for (int64_t length : rising.lengths) result["at"].push_back(baseline_->at(model, length, rising, before));
  if (request.real == 0 || !facts_.decoder()) return result;
  try {
    result["real"] = baseline_->real(model, rising);
  } catch (const Error& e) {
    if (!is_refusal(e)) throw;
    result["real"] = {{"refused", e.what()}};
  }
  return result;
}

}  // namespace attnkit::core::search
