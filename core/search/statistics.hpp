// The few statistics a search reports: intervals, spread, quantiles, relative composite performance, Pareto fronts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace attnkit::core::search {

// The two-sided 95 % point of the standard normal distribution.
inline constexpr double kNormal95 = 1.959963984540054;

struct Interval {
  double low = 0;
  double high = 0;
};

// Wilson's 95 % interval of a proportion, as fractions of 1, without continuity correction; [0, 1] for n = 0.
// 0 <= right <= n, or Failure.
Interval wilson(int64_t right, int64_t n);

// Standard deviation with n - 1; NaN for fewer than two values.
double sample_deviation(std::span<const double> values);

// Linear between order statistics: position p * (n - 1) of the sorted values (Hyndman and Fan's type 7, NumPy's
// default).  0 <= p <= 1, or Failure.  NaN without values or when one of them is NaN.
double quantile(std::span<const double> values, double p);
double median(std::span<const double> values);

// The exponents a, b, c and the weight w of the formulas below.
struct RcpSettings {
  double throughput = 1;
  double quality = 1;
  double memory = 1;
  double quality_weight = 1;
  // false: an exponent or a weight of 0 leaves quality out.
  bool weighs_quality() const { return quality != 0 && quality_weight != 0; }
};

// Both follow Agostinelli, Hong and Chen (2024), equations 11 and 12, with any baseline in place of theirs:
//   rcp     = (T / T_b)^a / (1 + w (Q_b - Q) / std_bench)^b
//   rcp_mem = (1/2 (T / T_b)^a + 1/2 (M_b / M)^c) / (1 + w (Q_b - Q) / std_bench)^b
// throughput is T / T_b, memory is M / M_b, quality is Q and higher is better; std_bench is in units of quality.  The
// baseline has 1, and more is better.  No value unless the ratios and the denominator are positive and finite; a
// std_bench that is not positive and finite leaves one only to quality == baseline_quality, where it cancels out.  The
// denominator is 1 where quality is left out.
std::optional<double> rcp(double throughput, double quality, double baseline_quality, double std_bench,
                          const RcpSettings& settings = {});
std::optional<double> rcp_mem(double throughput, double quality, double baseline_quality, double std_bench,
                              double memory, const RcpSettings& settings = {});
// Is a placement so much better than the baseline that it has no value, the denominator being 0 or less?  It comes
// before all that have one, as their values do where the denominator falls to 0.
bool is_beyond_values(double quality, double baseline_quality, double std_bench, const RcpSettings& settings);

// Points hold one number per objective, higher is better.  a dominates b when it is nowhere lower and somewhere higher.
// A point with a NaN dominates nothing and counts as dominated, even alone.  Equal points do not dominate each other.
// Failure unless all points have the same length.
using Points = std::vector<std::vector<double>>;

std::vector<bool> nondominated(const Points& points);

// Rank by point: 0 for the nondominated, k for those nondominated once ranks below k are taken away.  Points with a NaN
// have the rank after all others', at least 1.
std::vector<int> fronts(const Points& points);

// By point of one front the crowding distance of NSGA-II (Deb and others 2002): per objective the gap between a point's
// neighbours over the range, summed up.  Infinite at both ends of an objective and for fronts of up to two points.
// Ends among equals go by position, objectives of no or infinite range add no gap, and NaN points are left out with 0.
std::vector<double> crowding(const Points& front);

}  // namespace attnkit::core::search
