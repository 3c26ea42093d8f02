// Ablation: one block at a time against the baseline, then combinations of the best.
#include <algorithm>
#include <cmath>

#include "core/search/batches.hpp"
#include "core/search/pareto.hpp"

namespace attnkit::search {
namespace {

constexpr uint64_t kMostCombinations = 32;
constexpr size_t kChoicesPerUnit = 2;

bool is_ranked(const Outcome& o) { return o.rank && !std::isnan(*o.rank); }
bool is_measured(const Outcome& o) { return !std::isnan(o.quality + o.throughput + o.memory); }

// Positions from best to worst: by rank, or by front and then quality if one has no rank; the first of equals first.
std::vector<size_t> best_first(const std::vector<Outcome>& outcomes) {
  const bool by_rank = std::all_of(outcomes.begin(), outcomes.end(), is_ranked);
  const std::vector<int> front = fronts(objectives(outcomes));
  std::vector<std::pair<double, double>> merit;
  std::vector<size_t> order;
  for (const Outcome& o : outcomes) {
    const size_t i = order.size();
    // NaN would leave no order to sort by.
    const double quality = std::isnan(o.quality) ? -std::numeric_limits<double>::infinity() : o.quality;
    merit.push_back(by_rank ? std::pair(*o.rank, 0.0) : std::pair(-static_cast<double>(front[i]), quality));
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return merit[a] > merit[b]; });
  return order;
}

class Ablation : public BatchStrategy {
 public:
  Ablation(const Space& space, bool per_layer) : BatchStrategy(space), units_(units_of(space, per_layer)) {}

 private:
  std::vector<Placement> batch() override {
    ++batches_;
    return batches_ == 1 ? starting_points(space(), units_) : batches_ == 2 ? combinations() : std::vector<Placement>{};
  }

  // Outcomes of the baseline and of the baseline with another choice in this unit, as far as the space allows them.
  std::vector<Outcome> changes(Unit unit) const {
    std::vector<Placement> placements{space().baseline};
    for (int choice : choices_of(space(), unit)) {
      Placement changed = with_choice(space().baseline, unit, choice);
      if (changed != space().baseline) placements.push_back(std::move(changed));
    }
    std::vector<Outcome> found;
    for (const Placement& placement : placements) {
      const auto outcome = outcomes().find(placement);
      if (outcome != outcomes().end() && is_allowed(space(), unit, placement)) found.push_back(outcome->second);
    }
    return found;
  }

  // The best one or two of a unit's changes, best first.
  std::vector<Outcome> best(Unit unit) const {
    const std::vector<Outcome> all = changes(unit);
    std::vector<Outcome> eligible, chosen;
    std::copy_if(all.begin(), all.end(), std::back_inserter(eligible), [](const Outcome& o) { return o.usable; });
    const bool is_limited = eligible.empty();
    // A limit that no single change keeps may be kept by several, so what was measured beyond it will do.
    if (is_limited) std::copy_if(all.begin(), all.end(), std::back_inserter(eligible), is_measured);
    for (size_t i : best_first(eligible))
      if (chosen.size() < kChoicesPerUnit) chosen.push_back(eligible[i]);
    if (chosen.empty()) chosen.push_back({.placement = space().baseline});
    // Then the baseline misses the limit too, and more of it will not help.
    if (is_limited && chosen.front().placement == space().baseline) std::swap(chosen.front(), chosen.back());
    return chosen;
  }

  std::vector<Placement> combinations() const {
    std::vector<std::vector<Outcome>> choices;
    uint64_t count = 1;
    for (Unit unit : units_) {
      choices.push_back(best(unit));
      count = std::min(count * choices.back().size(), kMostCombinations + 1);
    }
    return count <= kMostCombinations ? product(choices) : ascent(choices);
  }

  std::vector<Placement> product(const std::vector<std::vector<Outcome>>& choices) const {
    std::vector<Placement> found{space().baseline};
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
    Placement placement = space().baseline;
    std::vector<Outcome> steps;
    std::vector<Unit> units;
    for (size_t u = 0; u < units_.size(); ++u) {
      const Outcome& best = choices[u].front();
      if (!is_allowed(space(), units_[u], placement)) {
        placement = with_unit_of(std::move(placement), units_[u], best.placement);
      } else if (best.placement != space().baseline) {
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

}  // namespace

std::unique_ptr<Strategy> make_ablation(const Space& space, bool per_layer) {
  return std::make_unique<Ablation>(space, per_layer);
}

}  // namespace attnkit::search
