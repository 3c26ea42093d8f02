#include "hosts/cli/bench/model.hpp"

#include <chrono>
#include <random>

#include "core/search/worker/process_memory.hpp"
#include "core/search/statistics.hpp"
#include "hosts/cli/io/inputs.hpp"
#include "hosts/cli/io/interrupt.hpp"

namespace attnkit::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t fewest = 5, most = 31;
constexpr double budget_seconds = 8;  // of one length

// One batch of random tokens, or of random frames that make as many rows of the encoder, and where the scores go.
class Pass {
 public:
  Pass(const Model& model, int64_t batch, int64_t length) : model_(model), facts_(facts_of(model)) {
    if (length > facts_.info.max_length)
      fail(Exit::usage, "--length {}: the model takes up to {} tokens (max_length)", length, facts_.info.max_length);
    if (facts_.speech) speech_.emplace(random_frames(batch, length), facts_.info.features);
    if (facts_.encoder && !facts_.speech) source_ = random(facts_.info.source_vocab, batch, length);
    if (facts_.decoder) target_ = random(facts_.info.target_vocab, batch, length);
    const int64_t rows = facts_.classifier ? 1 : length;
    scores_.resize(static_cast<size_t>(batch * rows * facts_.info.outputs));
    out_ = facts_.classifier ? tensor(scores_.data(), {batch, facts_.info.outputs})
                             : tensor(scores_.data(), {batch, length, facts_.info.outputs});
  }

  double seconds() {
    check_interrupt();
    const Clock::time_point start = Clock::now();
    if (speech_)
      model_.forward(*speech_, target_, out_);
    else
      model_.forward(source_, target_, out_);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  std::optional<uint64_t> memory() {
    if (!search::restart_peak()) return std::nullopt;
    const auto before = search::resident_memory();
    seconds();
    const auto after = search::peak_resident_memory();
    if (!before || !after) return std::nullopt;
    return *after - std::min(*before, *after);
  }

 private:
  static Batch random(int32_t vocabulary, int64_t batch, int64_t length) {
    std::mt19937 random(1);
    std::vector<Ids> rows(static_cast<size_t>(batch), Ids(static_cast<size_t>(length)));
    for (Ids& row : rows)
      for (int32_t& id : row) id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
    return Batch(rows);
  }

  std::vector<std::vector<float>> random_frames(int64_t batch, int64_t length) const {
    std::mt19937 random(1);
    std::normal_distribution<float> draw(10, 3);  // about what logarithms of energies are
    const auto size = static_cast<size_t>(length * facts_.info.subsampling * facts_.info.features);
    std::vector<std::vector<float>> rows(static_cast<size_t>(batch), std::vector<float>(size));
    for (std::vector<float>& row : rows)
      for (float& x : row) x = draw(random);
    return rows;
  }

  const Model& model_;
  Facts facts_;
  std::optional<SpeechBatch> speech_;
  Batch source_, target_;
  std::vector<float> scores_;
  attn_tensor out_;
};

ModelTiming time_length(const OpenModel& open, const OpenModel& open_other, int64_t batch, int64_t length) {
  const Model model = open();
  Pass pass(model, batch, length);
  ModelTiming timing{};
  timing.length = length;
  timing.peak_memory = pass.memory();
  pass.seconds();
  std::optional<Model> other;
  std::optional<Pass> beside;
  if (open_other) {
    other.emplace(open_other());
    beside.emplace(*other, batch, length);
    beside->seconds();
  }
  std::vector<double> own, ratios;
  const Clock::time_point start = Clock::now();
  while (own.size() < most) {
    if (own.size() >= fewest && std::chrono::duration<double>(Clock::now() - start).count() > budget_seconds) break;
    // They swap places each time, so that going first is nobody's advantage.
    const bool first = own.size() % 2 == 0;
    double theirs = beside && !first ? beside->seconds() : 0;
    own.push_back(pass.seconds());
    if (beside && first) theirs = beside->seconds();
    if (beside) ratios.push_back(theirs / own.back());
  }
  timing.median = search::median(own);
  timing.first_quartile = search::quantile(own, 0.25);
  timing.third_quartile = search::quantile(own, 0.75);
  timing.repetitions = own.size();
  if (beside) timing.speed = search::median(ratios);
  return timing;
}

}  // namespace

std::vector<ModelTiming> time_model(const OpenModel& open, const OpenModel& open_other, const ModelBench& setup) {
  std::vector<ModelTiming> timings;
  for (const int64_t length : setup.lengths) timings.push_back(time_length(open, open_other, setup.batch, length));
  return timings;
}

}  // namespace attnkit::cli
