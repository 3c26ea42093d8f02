// Relative composite performance: one number for a placement's throughput, quality and memory against the baseline's.
#pragma once

#include <optional>

namespace attnkit::search {

// The exponents a, b, c and the weight w of the formulas below.
struct RcpSettings {
  double throughput = 1;
  double quality = 1;
  double memory = 1;
  double quality_weight = 1;
};

// Both follow Agostinelli, Hong and Chen (2024), equations 11 and 12, with any baseline in place of theirs:
//   rcp     = (T / T_b)^a / (1 + w (Q_b - Q) / std_bench)^b
//   rcp_mem = rcp * (M_b / M)^c
// throughput is T / T_b, memory is M / M_b, quality is Q and higher is better; std_bench is in units of quality.  The
// baseline has 1, and more is better.  No value unless the ratios and the denominator are positive and finite; a
// std_bench that is not positive and finite leaves one only to quality == baseline_quality, where it cancels out.
std::optional<double> rcp(double throughput, double quality, double baseline_quality, double std_bench,
                          const RcpSettings& settings = {});
std::optional<double> rcp_mem(double throughput, double quality, double baseline_quality, double std_bench,
                              double memory, const RcpSettings& settings = {});

}  // namespace attnkit::search
