// Strategies at equal cost on models whose truth is known.
#pragma once

#include <ctime>

#include "tests/core/search/synthetic/space.hpp"

namespace attnkit::core::search {

// The homogeneous placements first, as in every search, then any.
class RandomSearch : public Strategy {
 public:
  RandomSearch(const Space& space, int trials, uint64_t seed) : all_(homogeneous(space)) {
    std::mt19937_64 random(seed);
    std::set<Placement> seen(all_.begin(), all_.end());
    while (seen.size() < static_cast<size_t>(trials)) {
      Placement next = placement_at(space, units_of(space, true), random() % size_of(space, true));
      if (seen.insert(next).second) all_.push_back(std::move(next));
    }
  }
  std::vector<Placement> next(std::span<const Outcome>) override { return std::exchange(all_, {}); }
  Seen seen() const override { return {}; }

 private:
  std::vector<Placement> all_;
};

enum class Contestant { random, evolution, guided };
inline const std::vector<std::string> contestant_names = {"random", "evolution", "guided evolution"};

inline std::unique_ptr<Strategy> make(Contestant who, const Space& space, int trials, uint64_t seed) {
  if (who == Contestant::random) return std::make_unique<RandomSearch>(space, trials, seed);
  return who == Contestant::evolution ? make_evolution(space, true, trials, seed)
                                      : make_guided_evolution(space, true, trials, seed);
}

struct Found {
  double value = 0;         // the true one of what measurements rank first
  double longest_step = 0;  // seconds of the processor to propose a generation
  Seen seen;
};

inline Found search(Contestant who, const SyntheticModel& model, int trials, uint64_t seed) {
  const std::unique_ptr<Strategy> strategy = make(who, model.space, trials, seed);
  Found found;
  std::vector<Outcome> outcomes;
  while (true) {
    const std::clock_t start = std::clock();
    const std::vector<Placement> batch = strategy->next(outcomes);
    found.longest_step = std::max(found.longest_step, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    if (batch.empty()) break;
    for (const Placement& placement : batch) outcomes.push_back(model.measured(placement, seed));
  }
  const auto best = std::ranges::max_element(outcomes, {}, [](const Outcome& o) { return o.rank.value_or(0); });
  found.value = model.truth(best->placement).rank.value_or(0);
  found.seen = strategy->seen();
  return found;
}

// The highest true value of a space that can be counted.
inline double best_of_all(const SyntheticModel& model) {
  double best = 0;
  for (uint64_t i = 0; i < size_of(model.space, true); ++i)
    best = std::max(best, model.truth(placement_at(model.space, units_of(model.space, true), i)).rank.value_or(0));
  return best;
}

// The highest that 300 climbs on the truth from random placements reach, one block at a time.
inline double best_known(const SyntheticModel& model, uint64_t seed) {
  const std::vector<Unit> units = units_of(model.space, true);
  const auto value = [&](const Placement& p) { return model.truth(p).rank.value_or(0); };
  std::mt19937_64 random(seed);
  double best = 0;
  for (int start = 0; start < 300; ++start) {
    Placement top = placement_at(model.space, units, random() % size_of(model.space, true));
    for (double before = -1; value(top) > before;) {
      before = value(top);
      for (Unit unit : units)
        for (int choice : model.space.allowed[unit.first])
          if (Placement other = with_choice(top, unit, choice); value(other) > value(top)) top = other;
    }
    best = std::max(best, value(top));
  }
  return best;
}

}  // namespace attnkit::core::search
