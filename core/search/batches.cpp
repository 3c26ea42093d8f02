// What the strategies share: batches that can be replayed, and moves within a space.
#include "core/search/batches.hpp"

#include <algorithm>

namespace attnkit::search {

std::vector<Unit> units_of(const Space& space, bool per_layer) {
  std::vector<Unit> units;
  if (per_layer) {
    for (size_t s = 0; s < space.sites.size(); ++s) units.push_back({s, s + 1});
  } else {
    for (uint32_t role : roles_of(space)) {
      const auto [first, last] = sites_of(space, role);
      units.push_back({first, last});
    }
  }
  return units;
}

const std::vector<int>& choices_of(const Space& space, Unit unit) { return space.allowed[unit.first]; }

bool is_allowed(const Space& space, Unit unit, const Placement& placement) {
  const std::vector<int>& choices = choices_of(space, unit);
  const int choice = placement[unit.first];
  return placement == with_choice(placement, unit, choice) &&
         std::find(choices.begin(), choices.end(), choice) != choices.end();
}

Placement with_choice(Placement placement, Unit unit, int choice) {
  for (size_t s = unit.first; s < unit.last; ++s) placement[s] = choice;
  return placement;
}

Placement with_unit_of(Placement placement, Unit unit, const Placement& source) {
  for (size_t s = unit.first; s < unit.last; ++s) placement[s] = source[s];
  return placement;
}

Placement placement_at(const Space& space, const std::vector<Unit>& units, uint64_t index) {
  Placement placement(space.sites.size());
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    const std::vector<int>& choices = choices_of(space, *unit);
    placement = with_choice(std::move(placement), *unit, choices[index % choices.size()]);
    index /= choices.size();
  }
  return placement;
}

std::vector<Placement> starting_points(const Space& space, const std::vector<Unit>& units) {
  std::vector<Placement> found = homogeneous(space);
  found.insert(found.begin(), space.baseline);
  for (Unit unit : units)
    for (int choice : choices_of(space, unit)) found.push_back(with_choice(space.baseline, unit, choice));
  return found;
}

std::vector<std::vector<double>> objectives(std::span<const Outcome> outcomes) {
  std::vector<std::vector<double>> points;
  for (const Outcome& o : outcomes) points.push_back({o.quality, o.throughput, -o.memory});
  return points;
}

std::vector<Placement> BatchStrategy::next(std::span<const Outcome> finished) {
  for (const Outcome& outcome : finished) known_.emplace(outcome.placement, outcome);
  for (;;) {
    std::vector<Placement> missing;
    for (const Placement& placement : batch_)
      if (!known_.contains(placement) && returned_.insert(placement).second) missing.push_back(placement);
    if (!missing.empty()) return missing;
    open_next_batch();
    if (batch_.empty()) return {};
  }
}

void BatchStrategy::open_next_batch() {
  for (const Placement& placement : batch_)
    if (const auto found = known_.find(placement); found != known_.end()) outcomes_.insert(*found);
  batch_.clear();
  for (Placement& placement : batch())
    if (wanted_.insert(placement).second) batch_.push_back(std::move(placement));
}

}  // namespace attnkit::search
