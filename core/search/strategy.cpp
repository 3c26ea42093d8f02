// The strategies share their books and moves within a space; then come the grid, ablation and
// evolution.
#include "core/search/strategy.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "core/search/statistics.hpp"

namespace attnkit::search {

std::vector<Unit> units_of(const Space& space, bool per_layer) {
  std::vector<Unit> units;
  for (size_t s = 0; per_layer && s < space.blocks.size(); ++s) units.push_back({s, s + 1});
  if (!per_layer)
    for (uint32_t role : roles_of(space)) units.push_back(blocks_of(space, role));
  return units;
}

bool is_allowed(const Space& space, Unit unit, const Placement& placement) {
  return is_uniform(placement, unit) && std::ranges::count(space.allowed[unit.first], placement[unit.first]) > 0;
}

Placement placement_at(const Space& space, const std::vector<Unit>& units, uint64_t index) {
  Placement placement(space.blocks.size());
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    const std::vector<int>& choices = space.allowed[unit->first];
    placement = with_choice(std::move(placement), *unit, choices[index % choices.size()]);
    index /= choices.size();
  }
  return placement;
}

namespace {

// `placement` with the unit as it is in `source`.
Placement with_unit_of(Placement placement, Unit unit, const Placement& source) {
  for (size_t s = unit.first; s < unit.last; ++s) placement[s] = source[s];
  return placement;
}

// The baseline, the homogeneous placements, and the baseline with one unit changed; some may be equal.
std::vector<Placement> starting_points(const Space& space, const std::vector<Unit>& units) {
  std::vector<Placement> found = homogeneous(space);
  found.insert(found.begin(), space.baseline);
  for (Unit unit : units)
    for (int choice : space.allowed[unit.first]) found.push_back(with_choice(space.baseline, unit, choice));
  return found;
}

Points objectives(std::span<const Outcome> outcomes) {
  Points points;
  for (const Outcome& o : outcomes) points.push_back({o.quality, o.throughput, -o.memory});
  return points;
}

// Keeps the books for all strategies.
class BatchStrategy : public Strategy {
 public:
  std::vector<Placement> next(std::span<const Outcome> finished) final {
    for (const Outcome& outcome : finished) outcomes_.emplace(outcome.placement, outcome);
    std::vector<Placement> fresh;
    for (Placement& placement : batch())
      if (wanted_.insert(placement).second) fresh.push_back(std::move(placement));
    return fresh;
  }

 protected:
  explicit BatchStrategy(const Space& space) : space_(space) {}
  // The next batch, made from outcomes_ alone; empty: done.  Placements wanted before are dropped.
  virtual std::vector<Placement> batch() = 0;

  const Space space_;
  std::map<Placement, Outcome> outcomes_;  // of all batches so far
  std::set<Placement> wanted_;             // by all batches so far
};

// Every placement with one choice per role, those with equal encoders next to each other.
class Grid : public BatchStrategy {
 public:
  explicit Grid(const Space& space) : BatchStrategy(space) {}

 private:
  std::vector<Placement> batch() override {
    if (!wanted_.empty()) return {};
    std::vector<Placement> all = homogeneous(space_);
    all.insert(all.begin(), space_.baseline);
    // The encoder's role comes first in a space and so changes slowest.
    const std::vector<Unit> units = units_of(space_, false);
    for (uint64_t i = 0; i < size_of(space_, false); ++i) all.push_back(placement_at(space_, units, i));
    return all;
  }
};

// Ablation: one block at a time against the baseline, then combinations of the best.
constexpr uint64_t kMaxCombinations = 32;
constexpr size_t kChoicesPerUnit = 2;

bool is_ranked(const Outcome& o) { return o.rank && !std::isnan(*o.rank); }
bool is_measured(const Outcome& o) { return !std::isnan(o.quality + o.throughput + o.memory); }

// Positions from best to worst: by rank, or by front and then quality if one has no rank; the first of equals first.
std::vector<size_t> best_first(const std::vector<Outcome>& outcomes) {
  const bool by_rank = std::ranges::all_of(outcomes, is_ranked);
  const std::vector<int> front = fronts(objectives(outcomes));
  std::vector<size_t> order(outcomes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) {
    const Outcome& o = outcomes[i];
    // NaN would leave no order to sort by.
    const double quality = std::isnan(o.quality) ? -std::numeric_limits<double>::infinity() : o.quality;
    return by_rank ? std::pair(*o.rank, 0.0) : std::pair(-static_cast<double>(front[i]), quality);
  });
  return order;
}

class Ablation : public BatchStrategy {
 public:
  Ablation(const Space& space, bool per_layer) : BatchStrategy(space), units_(units_of(space, per_layer)) {}

 private:
  std::vector<Placement> batch() override {
    ++batches_;
    return batches_ == 1 ? starting_points(space_, units_) : batches_ == 2 ? combinations() : std::vector<Placement>{};
  }

  // Outcomes of the baseline and of the baseline with another choice in this unit, as far as the space allows them.
  std::vector<Outcome> changes(Unit unit) const {
    std::vector<Outcome> found;
    const auto add = [&](const Placement& placement) {
      const auto outcome = outcomes_.find(placement);
      if (outcome != outcomes_.end() && is_allowed(space_, unit, placement)) found.push_back(outcome->second);
    };
    add(space_.baseline);
    for (int choice : space_.allowed[unit.first])
      if (const Placement changed = with_choice(space_.baseline, unit, choice); changed != space_.baseline)
        add(changed);
    return found;
  }

  // The best one or two of a unit's changes, best first.
  std::vector<Outcome> best(Unit unit) const {
    const std::vector<Outcome> all = changes(unit);
    std::vector<Outcome> eligible, chosen;
    std::ranges::copy_if(all, std::back_inserter(eligible), &Outcome::usable);
    const bool is_limited = eligible.empty();
    // A limit that no single change keeps may be kept by several, so what was measured beyond it will do.
    if (is_limited) std::ranges::copy_if(all, std::back_inserter(eligible), is_measured);
    for (size_t i : best_first(eligible))
      if (chosen.size() < kChoicesPerUnit) chosen.push_back(eligible[i]);
    if (chosen.empty()) chosen.push_back({.placement = space_.baseline});
    // Then the baseline misses the limit too, and more of it will not help.
    if (is_limited && chosen.front().placement == space_.baseline) std::swap(chosen.front(), chosen.back());
    return chosen;
  }

  std::vector<Placement> combinations() const {
    std::vector<std::vector<Outcome>> choices;
    uint64_t count = 1;
    for (Unit unit : units_) {
      choices.push_back(best(unit));
      count = std::min(count * choices.back().size(), kMaxCombinations + 1);
    }
    return count <= kMaxCombinations ? product(choices) : ascent(choices);
  }

  std::vector<Placement> product(const std::vector<std::vector<Outcome>>& choices) const {
    std::vector<Placement> found{space_.baseline};
    for (size_t u = 0; u < units_.size(); ++u) {
      std::vector<Placement> longer;
      for (const Placement& placement : found)
        for (const Outcome& choice : choices[u]) longer.push_back(with_unit_of(placement, units_[u], choice.placement));
      found = std::move(longer);
    }
    return found;
  }

  // From the baseline to the best of every unit, the largest gain first.
  std::vector<Placement> ascent(const std::vector<std::vector<Outcome>>& choices) const {
    Placement placement = space_.baseline;
    std::vector<Outcome> steps;
    std::vector<Unit> units;
    for (size_t u = 0; u < units_.size(); ++u) {
      const Outcome& best = choices[u].front();
      if (!is_allowed(space_, units_[u], placement)) {
        placement = with_unit_of(std::move(placement), units_[u], best.placement);
      } else if (best.placement != space_.baseline) {
        steps.push_back(best);
        units.push_back(units_[u]);
      }
    }
    std::vector<Placement> found{placement};
    for (size_t i : best_first(steps)) found.push_back(with_unit_of(found.back(), units[i], steps[i].placement));
    return found;
  }

  std::vector<Unit> units_;
  int batches_ = 0;
};

// Evolution: generations bred from the front of what was tried before, in the manner of NSGA-II.
constexpr size_t kGeneration = 16;
constexpr size_t kLocalMoveEvery = 4;  // of the children, one in so many is a neighbour of a front member
constexpr size_t kParents = 32;        // at least, where so many are usable; the front is kept whole
constexpr int kAttempts = 32;          // at a child that is new, before taking the next one of the space

// Usable placements from best to worst by front and crowding; the first `front` ones are not dominated.
struct Population {
  std::vector<Placement> placements;
  size_t front = 0;
};

std::vector<double> crowding_by_front(const Points& points, const std::vector<int>& ranks) {
  std::vector<double> distances(points.size());
  for (int rank = 0; rank <= *std::max_element(ranks.begin(), ranks.end()); ++rank) {
    std::vector<size_t> members;
    Points front;
    for (size_t i = 0; i < points.size(); ++i) {
      if (ranks[i] != rank) continue;
      members.push_back(i);
      front.push_back(points[i]);
    }
    const std::vector<double> crowd = crowding(front);
    for (size_t i = 0; i < members.size(); ++i) distances[members[i]] = crowd[i];
  }
  return distances;
}

Population select(const std::map<Placement, Outcome>& outcomes) {
  std::vector<Outcome> usable;
  for (const auto& [placement, outcome] : outcomes)
    if (outcome.usable) usable.push_back(outcome);
  if (usable.empty()) return {};
  const Points points = objectives(usable);
  const std::vector<int> ranks = fronts(points);
  const std::vector<double> distances = crowding_by_front(points, ranks);
  std::vector<size_t> order(usable.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return std::pair(ranks[i], -distances[i]); });
  Population population;
  population.front = static_cast<size_t>(std::count(ranks.begin(), ranks.end(), ranks[order[0]]));
  order.resize(std::min(order.size(), std::max(kParents, population.front)));
  for (size_t i : order) population.placements.push_back(usable[i].placement);
  return population;
}

class Evolution : public BatchStrategy {
 public:
  Evolution(const Space& space, bool per_layer, int trials, uint64_t seed)
      : BatchStrategy(space),
        units_(units_of(space, per_layer)),
        size_(size_of(space, per_layer)),
        trials_(static_cast<size_t>(std::max(trials, 0))),
        random_(seed) {}

 private:
  std::vector<Placement> batch() override {
    const size_t left = trials_ - std::min(trials_, wanted_.size());
    std::vector<Placement> found;
    std::set<Placement> seen = wanted_;
    if (seen.empty()) {
      for (Placement& placement : starting_points(space_, units_of(space_, false)))
        if (found.size() < left && seen.insert(placement).second) found.push_back(std::move(placement));
      return found;
    }
    const Population population = select(outcomes_);
    while (found.size() < std::min(kGeneration, left)) {
      std::optional<Placement> child = new_child(population, found.size() % kLocalMoveEvery == 0, seen);
      if (!child) break;
      seen.insert(*child);
      found.push_back(std::move(*child));
    }
    return found;
  }

  std::optional<Placement> new_child(const Population& population, bool is_local, const std::set<Placement>& seen) {
    for (int attempt = 0; attempt < kAttempts && !population.placements.empty(); ++attempt) {
      Placement child = is_local ? neighbour(population) : crossing(population);
      if (!seen.contains(child)) return child;
    }
    uint64_t index = random_() % size_;
    for (uint64_t step = 0; step < size_; ++step, index = index + 1 == size_ ? 0 : index + 1) {
      Placement child = placement_at(space_, units_, index);
      if (!seen.contains(child)) return child;
    }
    return std::nullopt;
  }

  Placement neighbour(const Population& population) {
    const Placement& start = population.placements[below(population.front)];
    const size_t changed = below(units_.size());
    Placement child = start;
    for (size_t u = 0; u < units_.size(); ++u)
      if (u == changed || !is_allowed(space_, units_[u], child)) child = redrawn(std::move(child), units_[u]);
    return child;
  }

  Placement crossing(const Population& population) {
    const Placement &mother = tournament(population), &father = tournament(population);
    Placement child = mother;
    for (Unit unit : units_) {
      if (below(2) == 0) child = with_unit_of(std::move(child), unit, father);
      // The baseline may hold what the space does not allow; its children do not.
      if (below(units_.size()) == 0 || !is_allowed(space_, unit, child)) child = redrawn(std::move(child), unit);
    }
    return child;
  }

  const Placement& tournament(const Population& population) {
    const size_t a = below(population.placements.size()), b = below(population.placements.size());
    return population.placements[std::min(a, b)];
  }

  // Another choice in this unit if there is one.
  Placement redrawn(Placement placement, Unit unit) {
    std::vector<int> others = space_.allowed[unit.first];
    if (is_allowed(space_, unit, placement) && others.size() > 1) std::erase(others, placement[unit.first]);
    const int choice = others[below(others.size())];
    return with_choice(std::move(placement), unit, choice);
  }

  // std::uniform_int_distribution differs between standard libraries.
  size_t below(size_t limit) { return static_cast<size_t>(random_() % limit); }

  std::vector<Unit> units_;
  uint64_t size_;
  size_t trials_;
  std::mt19937_64 random_;
};

}  // namespace

std::unique_ptr<Strategy> make_grid(const Space& space) { return std::make_unique<Grid>(space); }

std::unique_ptr<Strategy> make_ablation(const Space& space, bool per_layer) {
  return std::make_unique<Ablation>(space, per_layer);
}

std::unique_ptr<Strategy> make_evolution(const Space& space, bool per_layer, int trials, uint64_t seed) {
  return std::make_unique<Evolution>(space, per_layer, trials, seed);
}

}  // namespace attnkit::search
