// The placements that a search tries, in their order.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/search/space.hpp"
#include "core/search/surrogate.hpp"

namespace attnkit::core::search {

// The outcome of one placement; NaN is a number that was not measured.
struct Outcome {
  Placement placement;
  bool usable = false;                                           // false: refused, failed, or beyond a limit
  double quality = std::numeric_limits<double>::quiet_NaN();     // a score, higher is better
  double throughput = std::numeric_limits<double>::quiet_NaN();  // relative to the baseline, higher is better
  double memory = std::numeric_limits<double>::quiet_NaN();      // relative to the baseline, lower is better
  std::optional<double> rank = std::nullopt;                     // the value that ranks placements, higher is better
};

// The part of its space that a strategy saw.
struct Seen {
  uint64_t space_size = 0;  // placements that it could propose, the baseline beside them; UINT64_MAX: or more
  size_t proposed = 0;
  // Of strategies that guess, where three placements or more were measured: the error of the guess of each placement
  // from the others.  Quality in its own unit, the others as natural logarithms: 0.05 is about 5 %.
  std::optional<HeldOut> quality = {}, throughput = {}, memory = {};
};

// Proposes placements, a batch at a time, which depend on its construction and on the outcomes alone.  One thread at a
// time; keeps no reference to its arguments.
class Strategy {
 public:
  virtual ~Strategy() = default;

  // The next batch, in which no placement stood before; empty: done.  finished: the outcomes of all that was returned,
  // in any order; one without an outcome counts as unusable.
  virtual std::vector<Placement> next(std::span<const Outcome> finished) = 0;

  // The share of the space that was proposed so far, and how well the rest of it can be guessed from the outcomes.
  virtual Seen seen() const = 0;
};

// Baseline, homogeneous placements, and every placement with one choice per role; equal encoders are neighbours.
std::unique_ptr<Strategy> make_grid(const Space& space);

// One change at a time against the baseline (modular linearized attention), by role or by block, then combinations of
// the best.  About one trial per choice of every role or block, and at most 32 combinations.
std::unique_ptr<Strategy> make_ablation(const Space& space, bool per_layer);

// An evolutionary search in the manner of NSGA-II over quality, throughput and memory; ends when it has proposed
// `trials` placements or every placement of the space.
std::unique_ptr<Strategy> make_evolution(const Space& space, bool per_layer, int trials, uint64_t seed);

// The same, but three quarters of the proposals after the first are where surrogates of the outcomes, drawn as boldly
// as the measurements allow, have their highest rank value or trade-off of quality, throughput and memory.
std::unique_ptr<Strategy> make_guided_evolution(const Space& space, bool per_layer, int trials, uint64_t seed);

// Moves of strategies: the units of a space, roles or single blocks.
std::vector<Unit> units_of(const Space& space, bool per_layer);
// Placement number `index` of those with one choice per unit; the last unit changes fastest.  index < size_of().
Placement placement_at(const Space& space, const std::vector<Unit>& units, uint64_t index);

}  // namespace attnkit::core::search
