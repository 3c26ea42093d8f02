// What the strategies share: batches that can be replayed, and moves within a space.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/search/strategy.hpp"

namespace attnkit::search {

// The sites [first, last) that change together: those of a role, or a single one.
struct Unit {
  size_t first = 0;
  size_t last = 0;
};

std::vector<Unit> units_of(const Space& space, bool per_layer);
// The choices that a unit may take.
const std::vector<int>& choices_of(const Space& space, Unit unit);
// Has the unit one choice, and one that it may take?  The baseline's need not be.
bool is_allowed(const Space& space, Unit unit, const Placement& placement);

Placement with_choice(Placement placement, Unit unit, int choice);
// `placement` with the unit as it is in `source`.
Placement with_unit_of(Placement placement, Unit unit, const Placement& source);

// Placement number `index` of those with one choice per unit; the last unit changes fastest.  index < size_of().
Placement placement_at(const Space& space, const std::vector<Unit>& units, uint64_t index);

// The baseline, the homogeneous placements, and the baseline with one unit changed; some may be equal.
std::vector<Placement> starting_points(const Space& space, const std::vector<Unit>& units);

// Quality, throughput and minus memory, for pareto.hpp.
std::vector<std::vector<double>> objectives(std::span<const Outcome> outcomes);

// Keeps the books for strategies that think in batches: it asks for the next batch once all of the former one is
// finished.  A strategy that starts with a journal goes through the same batches again without returning them.
class BatchStrategy : public Strategy {
 public:
  std::vector<Placement> next(std::span<const Outcome> finished) final;

 protected:
  explicit BatchStrategy(const Space& space) : space_(space) {}

  // The next batch, made from outcomes() alone; empty: done.  Repetitions and placements wanted before are dropped.
  virtual std::vector<Placement> batch() = 0;

  const Space& space() const { return space_; }
  const std::map<Placement, Outcome>& outcomes() const { return outcomes_; }  // of all batches so far
  const std::set<Placement>& wanted() const { return wanted_; }               // by all batches so far

 private:
  void open_next_batch();

  Space space_;
  std::vector<Placement> batch_;
  std::set<Placement> wanted_;
  std::set<Placement> returned_;
  std::map<Placement, Outcome> known_;
  std::map<Placement, Outcome> outcomes_;
};

}  // namespace attnkit::search
