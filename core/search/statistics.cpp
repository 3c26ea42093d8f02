// The few statistics a search reports: intervals, spread, quantiles and rank correlation.
#include "core/search/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/search/failure.hpp"

namespace attnkit::search {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool has_nan(std::span<const double> values) {
  return std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

int order(double a, double b) { return (a > b) - (a < b); }

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
  double sum = 0;
  for (double v : values) sum += v;
  const double mean = sum / static_cast<double>(values.size());
  double squares = 0;
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

double kendall_tau_b(std::span<const double> x, std::span<const double> y) {
  if (x.size() != y.size()) fail(Fault::internal, "{} values against {}: give pairs", x.size(), y.size());
  if (has_nan(x) || has_nan(y)) return kNaN;
  int64_t agreement = 0, untied_x = 0, untied_y = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const int by_x = order(x[i], x[j]), by_y = order(y[i], y[j]);
      agreement += by_x * by_y;
      untied_x += by_x != 0;
      untied_y += by_y != 0;
    }
  }
  if (untied_x == 0 || untied_y == 0) return kNaN;
  return static_cast<double>(agreement) /
         (std::sqrt(static_cast<double>(untied_x)) * std::sqrt(static_cast<double>(untied_y)));
}

}  // namespace attnkit::search
