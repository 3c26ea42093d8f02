#include "core/search/search.hpp"

#include <attnkit/attnkit.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/search/failure.hpp"
#include "core/search/statistics.hpp"

namespace attnkit::search {
namespace {

using Json = nlohmann::json;

// Lists that finalists are timed on.
constexpr int real_lists = 8;

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
  const auto take = [&](Record& record, const Json& result) {
    declared_.add(space_, record.placement, result["description"]);
    const std::string warning = weights_warning(result);
    if (warning.empty()) return;
    record.status = Record::Status::refused;
    record.reason = warning;
  };
  std::deque<Record> probes;
  std::vector<std::tuple<Record*, uint32_t, int>> cells;
  for (uint32_t role : roles_of(space_)) {
    const auto [first, last] = sites_of(space_, role);
    for (int choice : space_.allowed[first]) {
      Record record;
      record.placement = space_.baseline;
      std::fill(record.placement.begin() + static_cast<std::ptrdiff_t>(first),
                record.placement.begin() + static_cast<std::ptrdiff_t>(last), choice);
      record.id = id_of(space_, record.placement);
      probes.push_back(std::move(record));
      cells.emplace_back(&probes.back(), role, choice);
    }
  }
  std::vector<Record*> all = {baseline_};
  for (Record& record : probes) all.push_back(&record);
  runner_.describe(all, settings_.lengths, 0, take);
  if (!baseline_->usable())
    throw Failure(Fault::manifest, fmt::format("the baseline {} cannot be used: {}", baseline_->id, baseline_->reason),
                  "choose another with --baseline NAME");
  for (const auto& [record, role, choice] : cells) {
    if (record->usable()) continue;
    refused_.push_back({role, choice, record->reason});
    const auto [first, last] = sites_of(space_, role);
    for (size_t s = first; s < last; ++s) std::erase(space_.allowed[s], choice);
    if (space_.allowed[first].empty())
      fail(Fault::usage, "the search space is empty: {} refuses every choice; the last one, {}: {}", role_name(role),
           space_.choices[static_cast<size_t>(choice)].label, record->reason);
  }
  if (size_of(space_, true) < 2)
    fail(Fault::usage,
         "the search space is empty: one placement is left; {} choices are refused, the last one, {} in {}: {}",
         refused_.size(), space_.choices[static_cast<size_t>(refused_.back().choice)].label,
         role_name(refused_.back().role), refused_.back().reason);
}

// Lengths beyond what the manifest allows are timed with a larger max_length, where the model can have one.
void Search::probe_lengths() {
  Record longest;
  longest.placement = space_.baseline;
  longest.id = baseline_->id;
  const int64_t most = *std::max_element(settings_.lengths.begin(), settings_.lengths.end());
  int64_t allowed = 0;
  runner_.describe({&longest}, {1}, most,
                   [&](Record&, const Json& result) { allowed = result["description"]["max_length"]; });
  if (longest.usable()) return;
  runner_.describe({baseline_}, {1}, 0,
                   [&](Record&, const Json& result) { allowed = result["description"]["max_length"]; });
  std::erase_if(settings_.lengths, [&](int64_t length) { return length > allowed; });
  if (settings_.length > allowed)
    fail(Fault::usage, "length {} is beyond the model's max_length {}: {}", settings_.length, allowed, longest.reason);
}

void Search::measure(const std::vector<Record*>& records) {
  runner_.quality(records, runner_.rungs().front());
  runner_.screen_cost(records, settings_.length);
}

// The homogeneous placements first: their spread is the unit of quality, and broken ones found later cannot move it.
void Search::scale() {
  for (const Placement& placement : search::homogeneous(space_)) homogeneous_.push_back(record_of(placement));
  std::vector<Record*> first = homogeneous_;
  if (std::find(first.begin(), first.end(), baseline_) == first.end()) first.insert(first.begin(), baseline_);
  measure(first);
  // All rungs, as BLEU of some lists cannot be had from BLEU of more.
  for (const int64_t rung : runner_.rungs()) runner_.quality(first, rung);
  if (!baseline_->usable())
    fail(Fault::manifest, "the baseline {} cannot be measured: {}", baseline_->id, baseline_->reason);
  std::vector<double> scores;
  for (const Record* record : homogeneous_)
    if (const auto quality = quality_of(*record, settings_.metric, lists("data")); record->usable() && quality)
      scores.push_back(score_of(settings_.metric, quality->value));
  if (scores.size() >= 2) std_bench_ = sample_deviation(scores);
  leader_.restart();
}

void Search::explore() {
  const std::unique_ptr<Strategy> strategy =
      settings_.strategy == StrategyKind::grid ? make_grid(space_)
      : settings_.strategy == StrategyKind::ablation
          ? make_ablation(space_, settings_.per_layer)
          : make_evolution(space_, settings_.per_layer, settings_.trials, settings_.seed);
  std::vector<const Record*> asked;
  while (true) {
    const std::vector<Placement> batch = strategy->next(outcomes(asked));
    if (batch.empty()) return;
    std::vector<Record*> records;
    for (const Placement& placement : batch) records.push_back(record_of(placement));
    measure(records);
    asked.insert(asked.end(), records.begin(), records.end());
  }
}

// Successive halving: the leaders of the screening on twice the lists, their leaders on twice as many, until all lists
// are used.  Those that more lists push beyond a limit are replaced by the next in line.
void Search::confirm() {
  const std::vector<int64_t>& rungs = runner_.rungs();
  size_t kept = records_.size() / 4;
  for (size_t i = 1; i < rungs.size(); ++i) {
    kept = std::max<size_t>(static_cast<size_t>(settings_.finalists), kept / 2);
    while (true) {
      const size_t there = climbed(rungs[i]);
      std::vector<Record*> next = there < kept ? waiting(rungs[i - 1], rungs[i]) : std::vector<Record*>();
      if (next.empty()) break;
      next.resize(std::min(next.size(), kept - there));
      runner_.quality(next, rungs[i]);
    }
  }
}

// Placements within the limits that were measured on so many lists because they did well.
size_t Search::climbed(int64_t lists) const {
  const std::vector<Record*> all = best(records_.size(), lists);
  return static_cast<size_t>(std::count_if(all.begin(), all.end(), [&](const Record* r) {
    const bool given = r == baseline_ || std::find(homogeneous_.begin(), homogeneous_.end(), r) != homogeneous_.end();
    return !given && r->lists(settings_.metric) >= lists;
  }));
}

// The best of those measured on `from` lists that have not been on `to`.
std::vector<Record*> Search::waiting(int64_t from, int64_t to) const {
  std::vector<Record*> all = best(records_.size(), from);
  std::erase_if(all,
                [&](const Record* r) { return r->lists(settings_.metric) < from || r->lists(settings_.metric) >= to; });
  return all;
}

// The finalists and the baseline at every length, and decoded as users decode; the homogeneous placements at lengths
// that take no time.  Of the data set the teacher-forced pass has told already what greedy decoding gives.
void Search::finish() {
  const auto beyond = std::upper_bound(settings_.lengths.begin(), settings_.lengths.end(), settings_.length);
  const std::vector<int64_t> ranked_lengths(settings_.lengths.begin(), beyond);
  while (Record* next = next_finalist()) {
    finalists_.push_back(next);
    runner_.cost({next}, ranked_lengths, real_lists);
  }
  std::vector<Record*> leading = finalists_;
  const auto is_leading = [&](Record* r) { return std::find(leading.begin(), leading.end(), r) != leading.end(); };
  if (!is_leading(baseline_)) {
    leading.push_back(baseline_);
    runner_.cost({baseline_}, ranked_lengths, real_lists);
  }
  for (auto length = beyond; length != settings_.lengths.end(); ++length) runner_.cost_beyond(leading, *length);
  std::vector<Record*> others = homogeneous_;
  std::erase_if(others, is_leading);
  runner_.cost(others, ranked_lengths, 0);
  if (opened()["kind"] != "encoder-decoder") return;
  if (settings_.metric == Metric::bleu) runner_.decode(leading, "data", lists("data"));
  if (lists("test") > 0) runner_.decode(leading, "test", lists("test"));
}

// The best that is none yet; NULL when there are enough and the leader is among them: being timed anew moves ranks.
Record* Search::next_finalist() const {
  const std::vector<Record*> leaders = best(records_.size(), lists("data"));
  const bool enough = finalists_.size() >= static_cast<size_t>(settings_.finalists);
  for (Record* record : leaders) {
    if (record->lists(settings_.metric) < lists("data")) break;
    if (!is_finalist(*record)) return record;
    if (enough) break;
  }
  return nullptr;
}

std::vector<Outcome> Search::outcomes(const std::vector<const Record*>& asked) const {
  std::vector<Outcome> all;
  for (const Ranked& r : rank(asked, input(runner_.rungs().front()))) {
    Outcome outcome;
    outcome.placement = r.record->placement;
    outcome.usable = r.record->usable() && r.limit.empty() && r.quality && r.throughput;
    if (r.quality) outcome.quality = score_of(settings_.metric, r.quality->value);
    if (r.throughput) outcome.throughput = *r.throughput;
    outcome.memory = r.memory.value_or(1);
    outcome.rank = rank_value(r, settings_);
    all.push_back(std::move(outcome));
  }
  return all;
}

std::vector<const Record*> Search::homogeneous() const { return {homogeneous_.begin(), homogeneous_.end()}; }

std::vector<Ranked> Search::ranking(int64_t lists) const {
  std::vector<const Record*> records;
  for (const Record& record : records_) records.push_back(&record);
  return rank(records, input(lists));
}

std::vector<Record*> Search::best(size_t n, int64_t lists) const {
  std::vector<Record*> found;
  for (const Ranked& r : ranking(lists))
    if (r.rank && found.size() < n) found.push_back(const_cast<Record*>(r.record));
  return found;
}

bool Search::is_finalist(const Record& record) const {
  return std::find(finalists_.begin(), finalists_.end(), &record) != finalists_.end();
}

// A placement that was not measured to the end is no answer, however well it did in the screening.
const Record* Search::winner() const {
  for (const Ranked& r : ranking())
    if (r.rank && is_finalist(*r.record)) return r.record;
  return nullptr;
}

std::string Search::leader(const Record& changed) {
  if (&changed == baseline_) leader_.restart();
  const Ranked* best = leader_.update(changed, records_);
  const std::optional<double> value = best ? rank_value(*best, settings_) : std::nullopt;
  return value ? fmt::format("{} {:.2f}", rank_names()[static_cast<size_t>(settings_.rank)], *value) : "";
}

}  // namespace attnkit::search
