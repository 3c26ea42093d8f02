// Multi-objective order: who dominates whom, fronts, and how crowded a front is.
#include "core/search/pareto.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/search/failure.hpp"

namespace attnkit::search {
namespace {

using Points = std::span<const std::vector<double>>;

bool is_complete(const std::vector<double>& point) {
  return std::none_of(point.begin(), point.end(), [](double v) { return std::isnan(v); });
}

bool dominates(const std::vector<double>& a, const std::vector<double>& b) {
  return a != b && std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) { return x >= y; });
}

// Positions of the points without a NaN.
std::vector<size_t> complete(Points points) {
  std::vector<size_t> found;
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].size() != points[0].size())
      fail(Fault::internal, "a point of {} objectives among points of {}", points[i].size(), points[0].size());
    if (is_complete(points[i])) found.push_back(i);
  }
  return found;
}

void add_gaps(Points front, std::vector<size_t> order, size_t objective, std::vector<double>& distance) {
  const auto value = [&](size_t i) { return front[order[i]][objective]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return front[a][objective] < front[b][objective]; });
  const size_t last = order.size() - 1;
  const double range = value(last) - value(0);
  if (!(range > 0)) return;
  for (size_t i = 1; i < last && std::isfinite(range); ++i) distance[order[i]] += (value(i + 1) - value(i - 1)) / range;
  distance[order[0]] = distance[order[last]] = std::numeric_limits<double>::infinity();
}

}  // namespace

std::vector<bool> nondominated(Points points) {
  std::vector<bool> result;
  for (int rank : fronts(points)) result.push_back(rank == 0);
  return result;
}

std::vector<int> fronts(Points points) {
  std::vector<size_t> order = complete(points);
  // A dominating point is lexicographically greater, so all that can dominate a point come before it.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return points[a] > points[b]; });
  std::vector<int> ranks(points.size(), -1);
  int behind = 1;
  for (size_t i = 0; i < order.size(); ++i) {
    int rank = 0;
    for (size_t j = 0; j < i; ++j)
      if (ranks[order[j]] >= rank && dominates(points[order[j]], points[order[i]])) rank = ranks[order[j]] + 1;
    ranks[order[i]] = rank;
    behind = std::max(behind, rank + 1);
  }
  std::replace(ranks.begin(), ranks.end(), -1, behind);
  return ranks;
}

std::vector<double> crowding(Points front) {
  const std::vector<size_t> members = complete(front);
  std::vector<double> distance(front.size(), 0);
  if (members.size() <= 2) {
    for (size_t i : members) distance[i] = std::numeric_limits<double>::infinity();
    return distance;
  }
  for (size_t objective = 0; objective < front[0].size(); ++objective) add_gaps(front, members, objective, distance);
  return distance;
}

}  // namespace attnkit::search
