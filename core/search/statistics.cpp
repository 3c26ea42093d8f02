#include "core/search/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool has_nan(std::span<const double> values) {
  return std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

bool is_positive(double value) { return std::isfinite(value) && value > 0; }

// The gain in throughput and memory over the loss of quality.
std::optional<double> performance(double gain, double quality, double baseline_quality, double std_bench,
                                  const RcpSettings& settings) {
  if (!std::isfinite(quality) || !std::isfinite(baseline_quality)) return std::nullopt;
  double denominator = 1;
  if (quality != baseline_quality && settings.weighs_quality()) {
    if (!is_positive(std_bench)) return std::nullopt;
    denominator += settings.quality_weight * (baseline_quality - quality) / std_bench;
  }
  if (!is_positive(denominator)) return std::nullopt;
  const double value = gain / std::pow(denominator, settings.quality);
  // Overflow and underflow are no performance either.
  return is_positive(value) ? std::optional(value) : std::nullopt;
}

bool dominates(const std::vector<double>& a, const std::vector<double>& b) {
  return a != b && std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) { return x >= y; });
}

// Positions of the points without a NaN.
std::vector<size_t> complete(const Points& points) {
  std::vector<size_t> found;
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].size() != points[0].size())
      fail(Fault::internal, "a point of {} objectives among points of {}", points[i].size(), points[0].size());
    if (!has_nan(points[i])) found.push_back(i);
  }
  return found;
}

void add_gaps(const Points& front, std::vector<size_t> order, size_t objective, std::vector<double>& distance) {
  const auto value = [&](size_t i) { return front[order[i]][objective]; };
  std::ranges::stable_sort(order, {}, [&](size_t i) { return front[i][objective]; });
  const size_t last = order.size() - 1;
  const double range = value(last) - value(0);
  if (!(range > 0)) return;
  for (size_t i = 1; i < last && std::isfinite(range); ++i) distance[order[i]] += (value(i + 1) - value(i - 1)) / range;
  distance[order[0]] = distance[order[last]] = kInfinity;
}

}  // namespace

Interval wilson(int64_t right, int64_t n) {
  if (right < 0 || right > n) fail(Fault::internal, "{} right of {}: give 0 to {}", right, n, n);
  if (n == 0) return {0, 1};
  const double count = static_cast<double>(n), share = static_cast<double>(right) / count;
  const double z2 = kNormal95 * kNormal95, scale = 1 / (1 + z2 / count);
  const double centre = scale * (share + z2 / (2 * count));
  const double half = scale * kNormal95 * std::sqrt(share * (1 - share) / count + z2 / (4 * count * count));
  // The ends are exact at none and all right; rounding must not leave them beside 0 and 1.
  return {right == 0 ? 0 : centre - half, right == n ? 1 : centre + half};
}

double sample_deviation(std::span<const double> values) {
  if (values.size() < 2) return kNaN;
  double sum = 0, squares = 0;
  for (double v : values) sum += v;
  const double mean = sum / static_cast<double>(values.size());
  for (double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double quantile(std::span<const double> values, double p) {
  if (!(p >= 0 && p <= 1)) fail(Fault::internal, "quantile {}: give 0 to 1", p);
  if (values.empty() || has_nan(values)) return kNaN;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double position = p * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const double low = sorted[below], high = sorted[std::min(below + 1, sorted.size() - 1)];
  const double weight = position - static_cast<double>(below);
  // Equal neighbours may both be infinite, and their difference is NaN.
  return weight == 0 || low == high ? low : low + weight * (high - low);
}

double median(std::span<const double> values) { return quantile(values, 0.5); }

std::optional<double> rcp(double throughput, double quality, double baseline_quality, double std_bench,
                          const RcpSettings& settings) {
  if (!is_positive(throughput)) return std::nullopt;
  return performance(std::pow(throughput, settings.throughput), quality, baseline_quality, std_bench, settings);
}

std::optional<double> rcp_mem(double throughput, double quality, double baseline_quality, double std_bench,
                              double memory, const RcpSettings& settings) {
  if (!is_positive(throughput) || !is_positive(memory)) return std::nullopt;
  const double gain = (std::pow(throughput, settings.throughput) + std::pow(1 / memory, settings.memory)) / 2;
  return performance(gain, quality, baseline_quality, std_bench, settings);
}

bool is_beyond_values(double quality, double baseline_quality, double std_bench, const RcpSettings& settings) {
  return settings.weighs_quality() && std::isfinite(quality) && is_positive(std_bench) &&
         1 + settings.quality_weight * (baseline_quality - quality) / std_bench <= 0;
}

std::vector<bool> nondominated(const Points& points) {
  std::vector<bool> result;
  for (int rank : fronts(points)) result.push_back(rank == 0);
  return result;
}

std::vector<int> fronts(const Points& points) {
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

std::vector<double> crowding(const Points& front) {
  const std::vector<size_t> members = complete(front);
  std::vector<double> distance(front.size(), 0);
  if (members.size() <= 2)
    for (size_t i : members) distance[i] = kInfinity;
  else
    for (size_t objective = 0; objective < front[0].size(); ++objective) add_gaps(front, members, objective, distance);
  return distance;
}

}  // namespace attnkit::core::search
