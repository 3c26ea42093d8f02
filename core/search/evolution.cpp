// Evolution: generations bred from the front of what was tried before, in the manner of NSGA-II.
#include <algorithm>
#include <random>

#include "core/search/batches.hpp"
#include "core/search/pareto.hpp"

namespace attnkit::search {
namespace {

constexpr size_t kGeneration = 16;
constexpr size_t kLocalMoveEvery = 4;  // of the children, one in so many is a neighbour of a front member
constexpr size_t kParents = 32;        // at least, where so many are usable; the front is kept whole
constexpr int kAttempts = 32;          // at a child that is new, before taking the next one of the space

// Usable placements from best to worst by front and crowding; the first `front` ones are not dominated.
struct Population {
  std::vector<Placement> placements;
  size_t front = 0;
};

std::vector<double> crowding_by_front(const std::vector<std::vector<double>>& points, const std::vector<int>& ranks) {
  std::vector<double> distances(points.size());
  for (int rank = 0; rank <= *std::max_element(ranks.begin(), ranks.end()); ++rank) {
    std::vector<size_t> members;
    std::vector<std::vector<double>> front;
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
  const std::vector<std::vector<double>> points = objectives(usable);
  const std::vector<int> ranks = fronts(points);
  const std::vector<double> distances = crowding_by_front(points, ranks);
  std::vector<size_t> order(usable.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return ranks[a] != ranks[b] ? ranks[a] < ranks[b] : distances[a] > distances[b];
  });
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
    const size_t left = trials_ - std::min(trials_, wanted().size());
    std::vector<Placement> found;
    std::set<Placement> seen = wanted();
    if (seen.empty()) {
      for (Placement& placement : starting_points(space(), units_of(space(), false)))
        if (found.size() < left && seen.insert(placement).second) found.push_back(std::move(placement));
      return found;
    }
    const Population population = select(outcomes());
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
      Placement child = placement_at(space(), units_, index);
      if (!seen.contains(child)) return child;
    }
    return std::nullopt;
  }

  Placement neighbour(const Population& population) {
    const Placement& start = population.placements[below(population.front)];
    const size_t changed = below(units_.size());
    Placement child = start;
    for (size_t u = 0; u < units_.size(); ++u)
      if (u == changed || !is_allowed(space(), units_[u], child)) child = redrawn(std::move(child), units_[u]);
    return child;
  }

  Placement crossing(const Population& population) {
    const Placement &mother = tournament(population), &father = tournament(population);
    Placement child = mother;
    for (Unit unit : units_) {
      if (below(2) == 0) child = with_unit_of(std::move(child), unit, father);
      // The baseline may hold what the space does not allow; its children do not.
      if (below(units_.size()) == 0 || !is_allowed(space(), unit, child)) child = redrawn(std::move(child), unit);
    }
    return child;
  }

  const Placement& tournament(const Population& population) {
    const size_t a = below(population.placements.size()), b = below(population.placements.size());
    return population.placements[std::min(a, b)];
  }

  // Another choice in this unit if there is one.
  Placement redrawn(Placement placement, Unit unit) {
    std::vector<int> others = choices_of(space(), unit);
    if (is_allowed(space(), unit, placement) && others.size() > 1) std::erase(others, placement[unit.first]);
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

std::unique_ptr<Strategy> make_evolution(const Space& space, bool per_layer, int trials, uint64_t seed) {
  return std::make_unique<Evolution>(space, per_layer, trials, seed);
}

}  // namespace attnkit::search
