// A whole model on whole sequences: speed and memory against the length.
#include "core/search/statistics.hpp"
#include "core/search/worker/process_memory.hpp"
#include "hosts/cli/bench/bench.hpp"
#include "hosts/cli/bench/limits.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

using OpenModel = std::function<Model()>;

struct ModelTiming {
  int64_t length;                       // tokens of the source and, where there is one, of the target
  Timing seconds;                       // of one batch
  std::optional<double> flops;          // of one batch, as layers and mechanisms state them; none where unknown
  std::optional<uint64_t> peak_memory;  // bytes of the first batch beside the loaded model; none where unknown
  std::optional<double> speed;          // median over the repetitions of the other model's seconds over this one's
};

// One batch of random tokens, or of random frames that make as many rows of the encoder, and its scores.
class Pass {
 public:
  Pass(const Model& model, int64_t batch, int64_t length)
      : model_(model), facts_(checked_facts(model, length)), scores_(facts_, batch, length) {
    if (facts_.speech) speech_.emplace(random_frames(facts_, batch, length), facts_.info.features);
    if (facts_.encoder() && !facts_.speech) source_ = random(facts_.info.source_vocab, batch, length);
    if (facts_.decoder()) target_ = random(facts_.info.target_vocab, batch, length);
  }

  double seconds() {
    check_interrupt();
    const Clock::time_point start = Clock::now();
    speech_ ? model_.forward(*speech_, target_, scores_.out) : model_.forward(source_, target_, scores_.out);
    return seconds_since(start);
  }

  std::optional<uint64_t> memory() {
    if (!facts_.gpu.empty() || !search::restart_peak()) return std::nullopt;
    const auto before = search::resident_memory();
    seconds();
    const auto after = search::peak_resident_memory();
    if (!before || !after) return std::nullopt;
    return *after - std::min(*before, *after);
  }

 private:
  static Facts checked_facts(const Model& model, int64_t length) {
    Facts facts = facts_of(model);
    if (length > facts.longest())
      fail(Exit::usage, "--length {}: the model takes up to {} tokens (max_length)", length, facts.longest());
    return facts;
  }

  Batch random(int32_t vocabulary, int64_t batch, int64_t length) const {
    std::vector<Ids> rows;
    for (int64_t i = 0; i < batch; ++i)
      rows.push_back(random_ids(facts_.info, vocabulary, length, static_cast<uint32_t>(i + 1)));
    return Batch(rows);
  }

  const Model& model_;
  const Facts facts_;
  const search::Scores scores_;
  std::optional<SpeechBatch> speech_;
  Batch source_, target_;
};

// Beside another model (open_other may be empty) the two take turns, so that a drift of the machine meets both.  The
// models are new ones, since one that has run keeps its buffers; memory is counted in the first batch, alone.
ModelTiming time_length(const OpenModel& open, const OpenModel& open_other, int64_t batch, int64_t length) {
  const Model model = open();
  Pass pass(model, batch, length);
  ModelTiming timing{};
  timing.length = length;
  timing.peak_memory = pass.memory();
  const Json costs = Json::parse(model.describe({length}))["costs"][0];
  if (costs.contains("flops")) timing.flops = static_cast<double>(batch) * costs["flops"].get<double>();
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
  constexpr size_t min_samples = 5, max_samples = 31;
  constexpr double budget_seconds = 8;
  while (own.size() < max_samples) {
    if (own.size() >= min_samples && seconds_since(start) > budget_seconds) break;
    // They swap places each time, so that neither gains by going first.
    const bool first = own.size() % 2 == 0;
    double theirs = beside && !first ? beside->seconds() : 0;
    own.push_back(pass.seconds());
    if (beside && first) theirs = beside->seconds();
    if (beside) ratios.push_back(theirs / own.back());
  }
  timing.seconds = timing_of(own);
  if (beside) timing.speed = search::median(ratios);
  return timing;
}

// limit: flops a second that the machine can do; none of a device.
Json json_of(const Arguments& arguments, int64_t batch, const std::vector<ModelTiming>& timings,
             std::optional<double> limit) {
  Json json = {{"schema", "attnkit.bench/1"},
               {"part", "model"},
               {"manifest", arguments.text("MANIFEST")},
               {"batch", batch},
               {"results", Json::array()}};
  if (arguments.has("against")) json["against"] = arguments.text("against");
  for (const ModelTiming& t : timings) {
    Json result = {{"length", t.length}};
    add_timing(t.seconds, result);
    result["tokens_per_second"] = static_cast<double>(batch * t.length) / t.seconds.median;
    if (t.flops) {
      const double rate = *t.flops / t.seconds.median;
      result.update({{"flops", *t.flops}, {"flops_per_second", rate}});
      if (limit) result.update({{"limit_flops_per_second", *limit}, {"share", rate / *limit}});
    }
    if (t.peak_memory) result["peak_memory_bytes"] = *t.peak_memory;
    if (t.speed) result["speed"] = *t.speed;
    json["results"].push_back(result);
  }
  return json;
}

std::string text_of(const Arguments& arguments, int64_t batch, const std::vector<ModelTiming>& timings,
                    std::optional<double> limit) {
  const bool beside = arguments.has("against");
  std::string out = fmt::format("{}, batches of {}, whole sequences{}\n", arguments.text("MANIFEST"), batch,
                                beside ? ", in turns with " + arguments.text("against") : "");
  std::vector<std::string> head = {">length", ">median", ">quartiles", ">tokens/s", ">peak memory", ">flops a second"};
  if (limit) head.push_back(">of the limit");
  if (beside) head.push_back(">speed");
  Table table(head);
  for (const ModelTiming& t : timings) {
    std::vector<std::string> row = {std::to_string(t.length),
                                    seconds_text(t.seconds.median),
                                    quartiles_text(t.seconds),
                                    count_text(static_cast<double>(batch * t.length) / t.seconds.median),
                                    t.peak_memory ? bytes_text(*t.peak_memory) : "?",
                                    t.flops ? count_text(*t.flops / t.seconds.median) : "?"};
    if (limit) row.push_back(t.flops ? fmt::format("{:.0f} %", 100 * *t.flops / t.seconds.median / *limit) : "?");
    if (beside) row.push_back(fmt::format("{:.2f}x", *t.speed));
    table.add(row);
  }
  return out + table.text();
}

}  // namespace

Exit bench_model(const Arguments& arguments) {
  const int64_t batch = arguments.integer("batch", 1, 1, 4096);
  const std::vector<int64_t> lengths = arguments.integers("length", {64, 512}, 1, 1 << 20);
  const Runtime runtime = open_runtime(arguments, 1);
  const Model model = open_model(runtime, arguments);  // reports warnings and errors of the manifest once
  const auto opener = [&](const std::string& path) {
    return [&runtime, path] { return open_model_quietly(runtime, path); };
  };
  OpenModel open_other;
  if (arguments.has("against")) open_other = opener(arguments.text("against"));
  std::optional<double> limit;
  if (Json::parse(model.describe())["device"] == "cpu")
    limit = arithmetic_limit(Json::parse(runtime.describe())["threads"].get<uint32_t>());
  std::vector<ModelTiming> timings;
  for (const int64_t length : lengths)
    timings.push_back(time_length(opener(arguments.text("MANIFEST")), open_other, batch, length));
  print_result(arguments.json(), json_of(arguments, batch, timings, limit), text_of(arguments, batch, timings, limit));
  return Exit::success;
}

}  // namespace attnkit::cli
