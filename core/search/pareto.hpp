// Multi-objective order: who dominates whom, fronts, and how crowded a front is.
#pragma once

#include <span>
#include <vector>

namespace attnkit::search {

// Points hold one number per objective, higher is better.  a dominates b when it is nowhere lower and somewhere higher.
// A point with a NaN dominates nothing and counts as dominated, even alone.  Equal points do not dominate each other.
// Failure unless all points have the same length.

std::vector<bool> nondominated(std::span<const std::vector<double>> points);

// Rank by point: 0 for the nondominated, k for those nondominated once ranks below k are taken away.  Points with a NaN
// have the rank after all others', at least 1.
std::vector<int> fronts(std::span<const std::vector<double>> points);

// By point of one front the crowding distance of NSGA-II (Deb and others 2002): per objective the gap between a point's
// neighbours over the range, summed up.  Infinite at both ends of an objective and for fronts of up to two points.
// Ends among equals go by position, objectives of no or infinite range add no gap, and NaN points are left out with 0.
std::vector<double> crowding(std::span<const std::vector<double>> front);

}  // namespace attnkit::search
