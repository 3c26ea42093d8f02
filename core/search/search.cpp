#include "core/search/search.hpp"

#include <attnkit/attnkit.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/search/failure.hpp"
#include "core/search/json_text.hpp"
#include "core/search/sampler.hpp"

namespace attnkit::core::search {
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
      log_path_(command.log_path),
      host_(host),
      runner_(settings_, space_, manifest, command, journal, host),
      leader_(settings_, [this](const Record& r) { return standing(r, input(std::numeric_limits<int64_t>::max())); }) {
  runner_.best = [this](const Record& changed) { return leader(changed); };
}

void Search::run() {
  probe();
  probe_length();
  scale();
  explore();
  do {
    run_race();
  } while (!finish());
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

// A ranked length beyond what the manifest allows needs a larger max_length, which the model may not have.  Those
// beyond it are trials by themselves, which say so.
void Search::probe_length() {
  Record longer;
  longer.placement = space_.baseline;
  longer.id = baseline_->id;
  int64_t allowed = 0;
  const auto take = [&](Record&, const Json& result) {
    const Json& description = result["description"];
    allowed = description["max_length"];
    allowed = std::min(allowed, description.value("max_target", allowed));
  };
  runner_.describe({&longer}, {1}, settings_.length, take);
  if (allowed >= settings_.length) return;
  runner_.describe({baseline_}, {1}, 0, take);
  const std::string why = longer.usable() ? "" : fmt::format(", which cannot be larger ({})", longer.reason);
  if (settings_.length > allowed)
    fail(Fault::usage, "length {0} is beyond the model's max_length {1}{2}: choose --length N of at most {1}",
         settings_.length, allowed, why);
}

void Search::measure(const std::vector<Record*>& records, int64_t examples, int blocks) {
  runner_.quality(records, examples);
  for (int block = 0; block < blocks; ++block) runner_.block(records, *baseline_, block);
}

// The homogeneous placements first: their spread is the unit of quality, and broken ones found later cannot move it.
void Search::scale() {
  for (const Placement& placement : search::homogeneous(space_)) homogeneous_.push_back(record_of(placement));
  std::vector<Record*> first = homogeneous_;
  if (std::ranges::count(first, baseline_) == 0) first.insert(first.begin(), baseline_);
  runner_.noise();
  measure(first, max_examples(), settings_.blocks);
  if (!baseline_->usable())
    fail(Fault::manifest, "the baseline {} cannot be measured: {}", baseline_->id, baseline_->reason);
  std::vector<double> scores;
  for (const Record* record : homogeneous_)
    if (const auto quality = quality_of(*record, settings_.metric, max_examples()); record->usable() && quality)
      scores.push_back(score_of(settings_.metric, quality->value));
  if (scores.size() >= 2) std_bench_ = sample_deviation(scores);
  leader_.restart();
}

void Search::explore() {
  const bool is_sampled = !settings_.sampler.empty();
  const std::unique_ptr<Strategy> strategy =
      is_sampled ? make_sampler(space_, settings_, runner_.proposals(), log_path_, host_.stop)
      : settings_.strategy == StrategyKind::grid ? make_grid(space_)
      : settings_.strategy == StrategyKind::ablation
          ? make_ablation(space_, settings_.per_layer)
          : make_guided_evolution(space_, settings_.per_layer, settings_.trials, settings_.seed);
  std::vector<const Record*> asked;
  while (true) {
    std::vector<Record*> records;
    for (const Placement& placement : strategy->next(outcomes(asked))) records.push_back(record_of(placement));
    if (records.empty()) break;
    if (is_sampled) runner_.keep_proposals(records);
    measure(records, runner_.rungs().front(), settings_.blocks);
    asked.insert(asked.end(), records.begin(), records.end());
  }
  seen_ = strategy->seen();
}

void Search::run_race() {
  std::vector<Record*> racers;
  for (Record& record : records_)
    if (record.usable()) racers.push_back(&record);
  RaceTrack track;
  track.rungs = runner_.rungs();
  const bool is_thorough = settings_.effort == Effort::thorough, is_quick = settings_.effort == Effort::quick;
  track.blocks = is_thorough ? settings_.max_blocks / 2 : settings_.blocks;
  track.max_blocks = is_quick ? settings_.blocks : settings_.max_blocks;
  track.baseline = &baseline_->outcomes;
  track.std_bench = std_bench_;
  track.measure = [&](const std::vector<size_t>& left, int64_t examples, int blocks) {
    std::vector<Record*> records;
    for (const size_t i : left) records.push_back(racers[i]);
    measure(records, examples, blocks);
  };
  track.racer = [&](size_t i) { return racer(*racers[i]); };
  // A top that is beyond a limit may have had others dropped: these race again without it.
  while (top_.empty() && !racers.empty()) {
    RaceResult result = race(settings_, track, racers.size());
    stages_ = std::move(result.stages);
    std::vector<Record*> out;
    for (const size_t i : result.top)
      (standing(*racers[i], input(max_examples())).limit.empty() ? top_ : out).push_back(racers[i]);
    if (out.empty()) break;
    std::erase_if(racers, [&](const Record* r) { return std::ranges::count(out, r) > 0; });
  }
}

// The test set by the top group alone, and once.  The first of it, and the baseline, at every length, and the winner
// decoded as users decode.  Returns false when all of the top group have failed meanwhile: the others race anew.
bool Search::finish() {
  const bool has_top = !top_.empty();
  const auto beyond = std::ranges::upper_bound(settings_.lengths, settings_.length);
  const std::vector<int64_t> ranked_lengths(settings_.lengths.begin(), beyond);
  const auto with_baseline = [&](size_t n) {
    std::vector<Record*> found(top_.begin(), top_.begin() + static_cast<std::ptrdiff_t>(std::min(n, top_.size())));
    if (std::ranges::count(found, baseline_) == 0) found.push_back(baseline_);
    return found;
  };
  // A racer that fails now leaves its place to the next.
  const auto drop_failed = [&] { return std::erase_if(top_, [](const Record* r) { return !r->usable(); }) > 0; };
  std::vector<Record*> leading;
  do {
    leading = with_baseline(static_cast<size_t>(settings_.finalists));
    runner_.cost(leading, ranked_lengths, Timing::whole, real_examples);
  } while (drop_failed());
  if (has_top && top_.empty()) return false;
  for (auto length = beyond; length != settings_.lengths.end(); ++length)
    runner_.cost(leading, {*length}, Timing::beyond);
  std::vector<Record*> others = homogeneous_;
  std::erase_if(others, [&](Record* r) { return std::ranges::count(leading, r) > 0; });
  runner_.cost(others, ranked_lengths, Timing::whole);
  drop_failed();
  if (has_top && top_.empty()) return false;
  if (examples("test") == 0) return true;
  // A screening leaves nearly everybody in it, and is to be quick.
  std::vector<Record*> tested =
      with_baseline(settings_.effort == Effort::quick ? static_cast<size_t>(settings_.finalists) : top_.size());
  const bool decodes = is_text(opened()["kind"], "encoder-decoder");
  do {
    runner_.test(tested, decodes ? with_baseline(1) : std::vector<Record*>());
    tested.clear();
  } while (drop_failed() && decodes);
  return !has_top || !top_.empty();
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
  std::vector<Ranked> all = rank(records, input(examples));
  // The race has the last word on who comes first: a short measurement may look better than it is.
  const auto place = [&](const Ranked& r) { return std::ranges::find(top_, r.record) - top_.begin(); };
  std::ranges::stable_sort(all, {}, place);
  int next = 1;
  for (Ranked& r : all)
    if (r.rank) r.rank = next++;
  return all;
}

std::string Search::leader(const Record& changed) {
  if (&changed == baseline_) leader_.restart();
  const Ranked* best = leader_.update(changed, records_);
  const std::optional<double> value = best ? rank_value(*best, settings_) : std::nullopt;
  return value ? fmt::format("{} {:.2f}", rank_names[static_cast<size_t>(settings_.rank)], *value) : "";
}

}  // namespace attnkit::core::search
