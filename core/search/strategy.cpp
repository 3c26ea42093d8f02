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

namespace attnkit::core::search {

std::vector<Unit> units_of(const Space& space, bool per_layer) {
  std::vector<Unit> units;
  for (size_t s = 0; per_layer && s < space.blocks.size(); ++s) units.push_back({s, s + 1});
  if (!per_layer)
    for (uint32_t role : roles_of(space)) units.push_back(blocks_of(space, role));
  return units;
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
    for (const Outcome& outcome : finished) outcomes_.insert_or_assign(outcome.placement, outcome);
    std::vector<Placement> fresh;
    for (Placement& placement : batch())
      if (wanted_.insert(placement).second) fresh.push_back(std::move(placement));
    return fresh;
  }

  Seen seen() const override { return {size_, wanted_.size()}; }

 protected:
  BatchStrategy(const Space& space, bool per_layer) : space_(space), size_(size_of(space, per_layer)) {}
  // The next batch, made from outcomes_ alone; empty: done.  Placements wanted before are dropped.
  virtual std::vector<Placement> batch() = 0;

  const Space space_;
  const uint64_t size_;
  std::map<Placement, Outcome> outcomes_;  // of all batches so far
  std::set<Placement> wanted_;             // by all batches so far
};

// Every placement with one choice per role, those with equal encoders next to each other.
class Grid : public BatchStrategy {
 public:
  explicit Grid(const Space& space) : BatchStrategy(space, false) {}

 private:
  std::vector<Placement> batch() override {
    if (!wanted_.empty()) return {};
    std::vector<Placement> all = homogeneous(space_);
    all.insert(all.begin(), space_.baseline);
    // The encoder's role comes first in a space and so changes slowest.
    const std::vector<Unit> units = units_of(space_, false);
    for (uint64_t i = 0; i < size_; ++i) all.push_back(placement_at(space_, units, i));
    return all;
  }
};

// Ablation: one block at a time against the baseline, then combinations of the best.
constexpr uint64_t kMaxCombinations = 32;
constexpr size_t kChoicesPerUnit = 2;

bool is_ranked(const Outcome& o) { return o.rank && !std::isnan(*o.rank); }
bool is_measured(const Outcome& o) { return std::isfinite(o.quality + o.throughput + o.memory); }

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
  Ablation(const Space& space, bool per_layer) : BatchStrategy(space, per_layer), units_(units_of(space, per_layer)) {}

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
      : BatchStrategy(space, per_layer),
        units_(units_of(space, per_layer)),
        trials_(static_cast<size_t>(std::max(trials, 0))),
        random_(seed) {}

 protected:
  // Called before each generation, with its population.
  virtual void prepare(const Population&) {}
  virtual std::optional<Placement> proposal(const Population& population, size_t number,
                                            const std::set<Placement>& seen) {
    return new_child(population, number % kLocalMoveEvery == 0, seen);
  }
  // In the first generation, as far as `trials` goes.
  virtual std::vector<Placement> start() { return starting_points(space_, units_of(space_, false)); }

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

  // std::uniform_int_distribution differs between standard libraries.
  size_t below(size_t limit) { return static_cast<size_t>(random_() % limit); }

  const std::vector<Unit> units_;
  const size_t trials_;
  std::mt19937_64 random_;

 private:
  std::vector<Placement> batch() final {
    const size_t left = trials_ - std::min(trials_, wanted_.size());
    std::vector<Placement> found;
    std::set<Placement> seen = wanted_;
    if (seen.empty()) {
      for (Placement& placement : start())
        if (found.size() < left && seen.insert(placement).second) found.push_back(std::move(placement));
      return found;
    }
    const Population population = select(outcomes_);
    if (left > 0) prepare(population);
    while (found.size() < std::min(kGeneration, left)) {
      std::optional<Placement> child = proposal(population, found.size(), seen);
      if (!child) break;
      seen.insert(*child);
      found.push_back(std::move(*child));
    }
    return found;
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
};

// Guided evolution: of every four placements one is bred, two are where the rank value seems highest, and one where a
// trade-off of quality, throughput and memory does.
constexpr size_t kStarts = 4;  // of a climb, half of them from the population
constexpr double kBold = 1, kTimid = 0.3;
constexpr size_t kObjectives = 3;

// Quality, and logarithms of the costs, which differ by factors; higher is better.
std::vector<double> scores_of(const Outcome& o) {
  constexpr double least = 1e-9;
  return {o.quality, std::log(std::max(o.throughput, least)), -std::log(std::max(o.memory, least))};
}

double lowest_of(std::span<const double> values) {
  double lowest = std::numeric_limits<double>::infinity();
  for (double v : values) lowest = std::min(lowest, v);
  return lowest;
}

class GuidedEvolution : public Evolution {
 public:
  using Evolution::Evolution;

  Seen seen() const override {
    Seen seen = Evolution::seen();
    std::vector<Placement> placements;
    std::vector<std::vector<double>> measured(kObjectives);
    for (const auto& [placement, outcome] : outcomes_) {
      if (!is_measured(outcome)) continue;
      placements.push_back(placement);
      for (size_t k = 0; k < kObjectives; ++k) measured[k].push_back(scores_of(outcome)[k]);
    }
    if (placements.size() < 3) return seen;
    std::optional<HeldOut>* const errors[kObjectives] = {&seen.quality, &seen.throughput, &seen.memory};
    for (size_t k = 0; k < kObjectives; ++k)
      *errors[k] = compare(Surrogate(placements, measured[k]).held_out(), measured[k]);
    return seen;
  }

 private:
  // Changes of a single role tell less than what the surrogates ask for.
  std::vector<Placement> start() override {
    std::vector<Placement> found = homogeneous(space_);
    found.insert(found.begin(), space_.baseline);
    return found;
  }

  void prepare(const Population& population) override {
    placements_.clear();
    objectives_.clear();
    value_.reset();
    if (population.placements.empty()) return;
    std::vector<std::vector<double>> scores(kObjectives);
    for (const auto& [placement, outcome] : outcomes_) {
      placements_.push_back(placement);
      // An outcome that was not measured counts as the worst measured one, so that the search keeps away from it.
      for (size_t k = 0; k < kObjectives; ++k)
        scores[k].push_back(is_measured(outcome) ? scores_of(outcome)[k] : std::numeric_limits<double>::infinity());
    }
    for (size_t k = 0; k < kObjectives; ++k) {
      const double worst = lowest_of(scores[k]);
      if (!std::isfinite(worst)) return objectives_.clear();
      std::ranges::replace(scores[k], std::numeric_limits<double>::infinity(), worst);
      best_[k] = std::ranges::max(scores[k]);
      range_[k] = best_[k] - worst;
      objectives_.emplace_back(placements_, std::move(scores[k]));
    }
    const auto is_valued = [](const auto& o) { return !o.second.usable || std::isfinite(o.second.rank.value_or(NAN)); };
    if (std::ranges::all_of(outcomes_, is_valued)) value_.emplace(placements_, rank_values());
  }

  // By placement; logarithms where all are positive, as a ratio is.  What is unusable has the worst of them.
  std::vector<double> rank_values() const {
    std::vector<double> values;
    for (const auto& [placement, o] : outcomes_)
      values.push_back(o.usable ? *o.rank : std::numeric_limits<double>::infinity());
    const double worst = lowest_of(values);
    std::ranges::replace(values, std::numeric_limits<double>::infinity(), worst);
    for (double& v : values) v = worst > 0 ? std::log(v) : v;
    return values;
  }

  std::optional<Placement> proposal(const Population& population, size_t number,
                                    const std::set<Placement>& seen) override {
    if (objectives_.empty() || number % 4 == 0) return new_child(population, number % 8 == 0, seen);
    const bool is_trade = !value_ || number % 4 == 3;
    const Climb climb = is_trade ? trade_off(population) : highest(population, number % 4 == 1 ? kBold : kTimid);
    if (!seen.contains(climb.top)) return climb.top;
    for (const auto& [score, placement] : climb.beside)
      if (!seen.contains(placement)) return placement;
    return new_child(population, false, seen);
  }

  Climb highest(const Population& population, double boldness) {
    const Surrogate::Draw draw = value_->draw(random_(), boldness);
    return best_climb(population, {&draw, 1}, [](std::span<const double> values) { return values[0]; });
  }

  // The largest weighted distance to the best, with random weights, decides (Chebyshev's norm, as in ParEGO).
  Climb trade_off(const Population& population) {
    constexpr double resolution = 4294967296.0, sum_share = 0.05;
    double weights[kObjectives];
    std::vector<Surrogate::Draw> draws;
    for (size_t k = 0; k < kObjectives; ++k) {
      // Exponential ones are even over all shares.
      weights[k] = -std::log((static_cast<double>(random_() >> 32) + 1) / resolution) / std::max(range_[k], 1e-12);
      draws.push_back(objectives_[k].draw(random_(), kBold));
    }
    return best_climb(population, draws, [&](std::span<const double> values) {
      double least = 0, sum = 0;
      for (size_t k = 0; k < kObjectives; ++k) {
        const double lead = weights[k] * (values[k] - best_[k]);
        least = k == 0 ? lead : std::min(least, lead);
        sum += lead;
      }
      return least + sum_share * sum;
    });
  }

  Climb best_climb(const Population& population, std::span<const Surrogate::Draw> draws,
                   const std::function<double(std::span<const double>)>& score) {
    std::optional<Climb> best;
    for (size_t i = 0; i < kStarts; ++i) {
      Placement from = i % 2 == 0 ? placement_at(space_, units_, random_() % size_)
                                  : population.placements[below(population.placements.size())];
      Climb found = climb(space_, units_, std::move(from), draws, score);
      if (!best || found.score > best->score) best = std::move(found);
    }
    return std::move(*best);
  }

  // Of one generation.
  std::vector<Placement> placements_;
  std::vector<Surrogate> objectives_;
  double best_[kObjectives] = {}, range_[kObjectives] = {};
  std::optional<Surrogate> value_;  // where all that is usable has a rank value
};

}  // namespace

std::unique_ptr<Strategy> make_grid(const Space& space) { return std::make_unique<Grid>(space); }

std::unique_ptr<Strategy> make_ablation(const Space& space, bool per_layer) {
  return std::make_unique<Ablation>(space, per_layer);
}

std::unique_ptr<Strategy> make_evolution(const Space& space, bool per_layer, int trials, uint64_t seed) {
  return std::make_unique<Evolution>(space, per_layer, trials, seed);
}

std::unique_ptr<Strategy> make_guided_evolution(const Space& space, bool per_layer, int trials, uint64_t seed) {
  return std::make_unique<GuidedEvolution>(space, per_layer, trials, seed);
}

}  // namespace attnkit::core::search
