// The placements that a search tries, in their order.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/search/space.hpp"

namespace attnkit::search {

// The outcome of one placement; NaN is a number that was not measured.
struct Outcome {
  Placement placement;
  bool usable = false;                                           // false: refused, failed, or beyond a limit
  double quality = std::numeric_limits<double>::quiet_NaN();     // a score, higher is better
  double throughput = std::numeric_limits<double>::quiet_NaN();  // relative to the baseline, higher is better
  double memory = std::numeric_limits<double>::quiet_NaN();      // relative to the baseline, lower is better
  std::optional<double> rank = std::nullopt;                     // the value that ranks placements, higher is better
};

// Proposes placements, a batch at a time, which depend on its construction and on the outcomes alone.  One thread at a
// time; keeps no reference to its arguments.
class Strategy {
 public:
  virtual ~Strategy() = default;

  // The next batch, in which no placement stood before; empty: done.  finished: the outcomes of all that was returned,
  // in any order; one without an outcome counts as unusable.
  virtual std::vector<Placement> next(std::span<const Outcome> finished) = 0;
};

// Baseline, homogeneous placements, and every placement with one choice per role; equal encoders are neighbours.
std::unique_ptr<Strategy> make_grid(const Space& space);

// One change at a time against the baseline (modular linearized attention), by role or by block, then combinations of
// the best.  About one trial per choice of every role or block, and at most 32 combinations.
std::unique_ptr<Strategy> make_ablation(const Space& space, bool per_layer);

// An evolutionary search in the manner of NSGA-II over quality, throughput and memory; ends when it has proposed
// `trials` placements or every placement of the space.
std::unique_ptr<Strategy> make_evolution(const Space& space, bool per_layer, int trials, uint64_t seed);

// Moves of strategies: the units of a space, roles or single blocks.
std::vector<Unit> units_of(const Space& space, bool per_layer);
// Has the unit one choice, and one that it may take?  The baseline's need not be.
bool is_allowed(const Space& space, Unit unit, const Placement& placement);
// Placement number `index` of those with one choice per unit; the last unit changes fastest.  index < size_of().
Placement placement_at(const Space& space, const std::vector<Unit>& units, uint64_t index);

}  // namespace attnkit::search
