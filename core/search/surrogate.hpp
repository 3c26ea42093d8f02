// A guess at what was not measured: a number of a placement as the sum of what each choice does in its block and of
// what each two choices do together, fitted to the placements that were measured.
//
// It is a Gaussian process, which is ridge regression on those effects without ever listing them: two placements are
// alike by how many blocks agree, alone and in pairs.  n placements cost n^3 / 6 multiplications, whatever the space.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/search/space.hpp"

namespace attnkit::core::search {

// Of held-out placements: the root of the mean squared error, and Kendall's tau-b between predicted and measured; NaN
// where there is none.
struct HeldOut {
  double rmse = 0, tau = 0;
  size_t n = 0;
};
HeldOut compare(std::span<const double> predicted, std::span<const double> measured);

// Immutable.  Finite for any finite values, all equal ones and a single one included.
class Surrogate {
 public:
  // placements, which must outlive it: different ones, at least one, of equally many blocks; values: of each.
  Surrogate(const std::vector<Placement>& placements, std::vector<double> values);

  // By placement what the others predict of it.
  std::vector<double> held_out() const;

  // One of the functions that the measurements allow: near them it is close to what was measured, far away it is
  // anybody's guess.
  class Draw {
   public:
    // By choice, 0 to choices - 1, the value with it in the whole unit.
    std::vector<double> by_choice(const Placement& placement, Unit unit, size_t choices) const;

   private:
    friend class Surrogate;
    double prior(const Placement& placement, Unit outside) const;
    double effect(size_t block, int choice) const;
    double effect(size_t a, int choice_a, size_t b, int choice_b) const;

    const Surrogate* of_ = nullptr;
    uint64_t seed_ = 0;
    double single_ = 0, pair_ = 0;  // spread of the effects of choices, alone and in pairs
    std::vector<double> weights_;   // of the placements
  };
  // boldness 1: as likely as the measurements make it; 0: the most likely one.
  Draw draw(uint64_t seed, double boldness) const;

 private:
  struct Shape {
    double pairs = 0.3, noise = 0.1;  // share of the spread that is due to pairs; of noise, in units of it
  };
  double likelihood(const Shape& shape) const;
  std::vector<double> kernel(const Shape& shape) const;
  std::vector<double> covariance(const Shape& shape, size_t stride, size_t count) const;

  const std::vector<Placement>& placements_;
  size_t blocks_;
  double mean_ = 0, spread_ = 0;  // of the values
  std::vector<double> values_;    // less their mean, in units of their spread
  Shape shape_;
  double scale_ = 0;            // of the function, in units of the spread
  std::vector<double> kernel_;  // by number of blocks that agree
  std::vector<double> root_;    // Cholesky's, of the covariance
};

// From `start` up to where no change of one unit makes `score` of the draws' values higher.
struct Climb {
  Placement top;
  double score = 0;
  std::vector<std::pair<double, Placement>> beside;  // changes of one unit of it, the highest first
};
Climb climb(const Space& space, const std::vector<Unit>& units, Placement start, std::span<const Surrogate::Draw> draws,
            const std::function<double(std::span<const double>)>& score);

}  // namespace attnkit::core::search
