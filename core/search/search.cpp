#include "core/search/search.hpp"

#include <attnkit/attnkit.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/search/failure.hpp"

namespace attnkit::search {
namespace {

using Json = nlohmann::json;

// Examples that finalists are timed on.
constexpr int real_examples = 8;

// Warnings that results would be of untrained parts count as refusals.
std::string weights_warning(const Json& result) {
  for (const Json& warning : result["warnings"])
    if (warning["area"] == ATTNKIT_AREA_WEIGHTS) return warning["message"];
  return "";
}

}  // namespace

Search::Search(Settings settings, Space space, const ManifestText& manifest, const WorkerCommand& command,
               Journal& journal, const Host& host)
    : settings_(std::move(settings)),
      space_(std::move(space)),
      runner_(settings_, space_, manifest, command, journal, host),
      leader_(settings_, [this](const Record& r) { return standing(r, input(std::numeric_limits<int64_t>::max())); }) {
  runner_.best = [this](const Record& changed) { return leader(changed); };
}

void Search::run() {
  probe();
  probe_lengths();
  scale();
  explore();
  confirm();
  finish();
}

Record* Search::record_of(const Placement& placement) {
  Record*& record = by_placement_[placement];
  if (record) return record;
  record = &records_.emplace_back();
  record->placement = placement;
  record->id = id_of(space_, placement);
  return record;
}

// Every choice of every role beside the baseline's other blocks: what is refused there is tried nowhere.
void Search::probe() {
  baseline_ = record_of(space_.baseline);
  std::deque<Record> probes;
  std::vector<std::tuple<Record*, uint32_t, int>> cells;
  std::vector<Record*> all = {baseline_};
  for (uint32_t role : roles_of(space_)) {
    const Unit unit = blocks_of(space_, role);
    for (int choice : space_.allowed[unit.first]) {
      Record& record = probes.emplace_back();
      record.placement = with_choice(space_.baseline, unit, choice);
      record.id = id_of(space_, record.placement);
      cells.emplace_back(&record, role, choice);
      all.push_back(&record);
    }
  }
  runner_.describe(all, settings_.lengths, 0, [&](Record& record, const Json& result) {
    declared_.add(space_, record.placement, result["description"]);
    const std::string warning = weights_warning(result);
    if (warning.empty()) return;
    record.status = Record::Status::refused;
    record.reason = warning;
  });
  if (!baseline_->usable())
    throw Failure(Fault::manifest, fmt::format("the baseline {} cannot be used: {}", baseline_->id, baseline_->reason),
                  "choose another with --baseline NAME");
  for (const auto& [record, role, choice] : cells) {
    if (record->usable()) continue;
    refused_.push_back({role, choice, record->reason});
    const Unit unit = blocks_of(space_, role);
    for (size_t s = unit.first; s < unit.last; ++s) std::erase(space_.allowed[s], choice);
    if (space_.allowed[unit.first].empty())
      fail(Fault::usage, "the search space is empty: {} refuses every choice; the last one, {}: {}", role_name(role),
           space_.choice(choice).label, record->reason);
  }
  if (size_of(space_, true) < 2)
    fail(Fault::usage,
         "the search space is empty: one placement is left; {} choices are refused, the last one, {} in {}: {}",
         refused_.size(), space_.choice(refused_.back().choice).label, role_name(refused_.back().role),
         refused_.back().reason);
}

// Lengths beyond what the manifest allows are timed with a larger max_length, where the model can have one.
void Search::probe_lengths() {
  Record longest;
  longest.placement = space_.baseline;
  longest.id = baseline_->id;
  int64_t allowed = 0;
  const auto take = [&](Record&, const Json& result) { allowed = result["description"]["max_length"]; };
  runner_.describe({&longest}, {1}, std::ranges::max(settings_.lengths), take);
  if (longest.usable()) return;
  runner_.describe({baseline_}, {1}, 0, take);
  std::erase_if(settings_.lengths, [&](int64_t length) { return length > allowed; });
  if (settings_.length > allowed)
    fail(Fault::usage, "length {} is beyond the model's max_length {}: {}", settings_.length, allowed, longest.reason);
}

void Search::measure(const std::vector<Record*>& records) {
  runner_.quality(records, runner_.rungs().front());
  runner_.cost(records, {settings_.length}, Timing::screen);
}

// The homogeneous placements first: their spread is the unit of quality, and broken ones found later cannot move it.
void Search::scale() {
  for (const Placement& placement : search::homogeneous(space_)) homogeneous_.push_back(record_of(placement));
  std::vector<Record*> first = homogeneous_;
  if (std::ranges::count(first, baseline_) == 0) first.insert(first.begin(), baseline_);
  measure(first);
  // All rungs, as BLEU of some examples cannot be had from BLEU of more.
  for (const int64_t rung : runner_.rungs()) runner_.quality(first, rung);
  if (!baseline_->usable())
    fail(Fault::manifest, "the baseline {} cannot be measured: {}", baseline_->id, baseline_->reason);
  std::vector<double> scores;
  for (const Record* record : homogeneous_)
    if (const auto quality = quality_of(*record, settings_.metric, examples("data")); record->usable() && quality)
      scores.push_back(score_of(settings_.metric, quality->value));
  if (scores.size() >= 2) std_bench_ = sample_deviation(scores);
  leader_.restart();
}

void Search::explore() {
  const std::unique_ptr<Strategy> strategy =
      settings_.strategy == StrategyKind::grid ? make_grid(space_)
      : settings_.strategy == StrategyKind::ablation
          ? make_ablation(space_, settings_.per_layer)
          : make_guided_evolution(space_, settings_.per_layer, settings_.trials, settings_.seed);
  std::vector<const Record*> asked;
  while (true) {
    std::vector<Record*> records;
    for (const Placement& placement : strategy->next(outcomes(asked))) records.push_back(record_of(placement));
    if (records.empty()) return;
    measure(records);
    asked.insert(asked.end(), records.begin(), records.end());
  }
}

// Successive halving: the leaders of the screening on twice the examples, their leaders on twice as many, until all
// examples are used.  Those that more examples push beyond a limit are replaced by the next in line.
void Search::confirm() {
  const std::vector<int64_t>& rungs = runner_.rungs();
  const auto examples_of = [&](const Record* r) { return r->examples(settings_.metric); };
  // The baseline and the homogeneous placements did not come so far because they did well.
  const auto climbed = [&](const Record* r, int64_t rung) {
    return r != baseline_ && std::ranges::count(homogeneous_, r) == 0 && examples_of(r) >= rung;
  };
  size_t kept = records_.size() / 4;
  for (size_t i = 1; i < rungs.size(); ++i) {
    kept = std::max<size_t>(static_cast<size_t>(settings_.finalists), kept / 2);
    while (true) {
      const auto there = static_cast<size_t>(
          std::ranges::count_if(best(rungs[i]), [&](const Record* r) { return climbed(r, rungs[i]); }));
      std::vector<Record*> next = best(rungs[i - 1]);
      std::erase_if(next, [&](auto* r) { return examples_of(r) < rungs[i - 1] || examples_of(r) >= rungs[i]; });
      if (there >= kept || next.empty()) break;
      next.resize(std::min(next.size(), kept - there));
      runner_.quality(next, rungs[i]);
    }
  }
}

// The finalists and the baseline at every length, and decoded as users decode; the homogeneous placements at lengths
// that take no time.  Of the data set the teacher-forced pass has shown already what greedy decoding gives.
void Search::finish() {
  const auto beyond = std::ranges::upper_bound(settings_.lengths, settings_.length);
  const std::vector<int64_t> ranked_lengths(settings_.lengths.begin(), beyond);
  while (Record* next = next_finalist()) {
    finalists_.push_back(next);
    runner_.cost({next}, ranked_lengths, Timing::whole, real_examples);
  }
  std::vector<Record*> leading = finalists_, others = homogeneous_;
  if (std::ranges::count(leading, baseline_) == 0) {
    leading.push_back(baseline_);
    runner_.cost({baseline_}, ranked_lengths, Timing::whole, real_examples);
  }
  for (auto length = beyond; length != settings_.lengths.end(); ++length)
    runner_.cost(leading, {*length}, Timing::beyond);
  std::erase_if(others, [&](Record* r) { return std::ranges::count(leading, r) > 0; });
  runner_.cost(others, ranked_lengths, Timing::whole);
  if (opened()["kind"] != "encoder-decoder") return;
  if (settings_.metric == Metric::bleu) runner_.decode(leading, "data", examples("data"));
  if (examples("test") > 0) runner_.decode(leading, "test", examples("test"));
}

// The best that is none yet; NULL when there are enough and the leader is among them: being timed anew moves ranks.
Record* Search::next_finalist() const {
  const bool enough = finalists_.size() >= static_cast<size_t>(settings_.finalists);
  for (Record* record : best(examples("data"))) {
    if (record->examples(settings_.metric) < examples("data")) break;
    if (!is_finalist(*record)) return record;
    if (enough) break;
  }
  return nullptr;
}

std::vector<Outcome> Search::outcomes(const std::vector<const Record*>& asked) const {
  std::vector<Outcome> all;
  for (const Ranked& r : rank(asked, input(runner_.rungs().front()))) {
    Outcome& outcome = all.emplace_back();
    outcome.placement = r.record->placement;
    outcome.usable = r.record->usable() && r.limit.empty() && r.quality && r.throughput;
    if (r.quality) outcome.quality = score_of(settings_.metric, r.quality->value);
    if (r.throughput) outcome.throughput = *r.throughput;
    outcome.memory = r.memory.value_or(1);
    outcome.rank = rank_value(r, settings_);
  }
  return all;
}

std::vector<Ranked> Search::ranking(int64_t examples) const {
  std::vector<const Record*> records;
  for (const Record& record : records_) records.push_back(&record);
  return rank(records, input(examples));
}

// Those with a rank by the first `examples`, the best first.
std::vector<Record*> Search::best(int64_t examples) const {
  std::vector<Record*> found;
  for (const Ranked& r : ranking(examples))
    if (r.rank) found.push_back(const_cast<Record*>(r.record));
  return found;
}

// A placement that was not measured to the end is no answer, however well it did in the screening.
const Record* Search::winner() const {
  for (const Record* record : best(std::numeric_limits<int64_t>::max()))
    if (is_finalist(*record)) return record;
  return nullptr;
}

std::string Search::leader(const Record& changed) {
  if (&changed == baseline_) leader_.restart();
  const Ranked* best = leader_.update(changed, records_);
  const std::optional<double> value = best ? rank_value(*best, settings_) : std::nullopt;
  return value ? fmt::format("{} {:.2f}", rank_names[static_cast<size_t>(settings_.rank)], *value) : "";
}

}  // namespace attnkit::search
