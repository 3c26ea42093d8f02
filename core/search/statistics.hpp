// The few statistics a search reports: intervals, spread, quantiles and rank correlation.
#pragma once

#include <cstdint>
#include <span>

namespace attnkit::search {

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

// Kendall's tau-b of pairs (x[i], y[i]): tied pairs count on neither side.  NaN when all x or all y are tied, or one
// is NaN.  Failure unless both have the same length.  Time grows with the square of the length.
double kendall_tau_b(std::span<const double> x, std::span<const double> y);

}  // namespace attnkit::search
