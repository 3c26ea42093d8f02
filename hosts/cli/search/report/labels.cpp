#include "hosts/cli/search/report/labels.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace attnkit::cli {
namespace {

constexpr double height = 15, gap = 3;

double overlap(const Box& a, const Box& b) {
  const double w = std::min(a.right, b.right) - std::max(a.left, b.left);
  const double h = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  return w > 0 && h > 0 ? w * h : 0;
}

Box grown(const Box& b, double by) { return {b.left - by, b.top - by, b.right + by, b.bottom + by}; }

bool inside(const Box& a, const Box& area) {
  return a.left >= area.left && a.right <= area.right && a.top >= area.top && a.bottom <= area.bottom;
}

// The label at `distance` from the point's edge in a direction, touching the ray with its nearest side.
LabelPlace placed(const LabelWish& wish, double angle, double distance) {
  const double c = std::cos(angle), s = std::sin(angle), reach = wish.radius + gap + distance;
  const double x = wish.x + c * reach, y = wish.y + s * reach;
  const double left = x - wish.width * (1 - c) / 2, top = y - height * (1 - s) / 2;
  const Box box{left, top, left + wish.width, top + height};
  const double to_x = std::clamp(wish.x, box.left, box.right), to_y = std::clamp(wish.y, box.top, box.bottom);
  const double dx = to_x - wish.x, dy = to_y - wish.y, length = std::max(1e-9, std::hypot(dx, dy));
  return {box,
          wish.x + dx / length * wish.radius,
          wish.y + dy / length * wish.radius,
          to_x,
          to_y,
          length - wish.radius > 9};
}

// In square pixels of what would be covered; distance decides between places that are equally free.
double cost_of(const LabelPlace& place, const std::vector<LabelPlace>& taken, const std::vector<Box>& obstacles,
               const Box& area, double distance) {
  double cost = distance * 3;
  if (!inside(place.box, area)) cost += 1e6;
  for (const LabelPlace& other : taken) cost += 1e3 * overlap(grown(place.box, 2), other.box);
  for (const Box& obstacle : obstacles) cost += overlap(place.box, obstacle);
  return cost;
}

}  // namespace

std::vector<LabelPlace> place_labels(const std::vector<LabelWish>& wishes, const std::vector<Box>& obstacles,
                                     const Box& area) {
  constexpr int directions = 16;
  std::vector<LabelPlace> taken;
  for (const LabelWish& wish : wishes) {
    LabelPlace best{};
    double least = INFINITY;
    for (const double distance : {0.0, 8.0, 18.0, 30.0, 45.0, 65.0, 90.0, 120.0})
      for (int d = 0; d < directions; ++d) {
        const LabelPlace place = placed(wish, 2 * std::numbers::pi * d / directions, distance);
        const double cost = cost_of(place, taken, obstacles, area, distance);
        if (cost < least) least = cost, best = place;
      }
    taken.push_back(best);
  }
  return taken;
}

}  // namespace attnkit::cli
