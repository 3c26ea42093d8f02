// Relative composite performance: one number for a placement's throughput, quality and memory against the baseline's.
#include "core/search/rcp.hpp"

#include <cmath>

namespace attnkit::search {
namespace {

bool is_positive(double value) { return std::isfinite(value) && value > 0; }

// Overflow and underflow are no performance either.
std::optional<double> if_positive(double value) { return is_positive(value) ? std::optional(value) : std::nullopt; }

}  // namespace

std::optional<double> rcp(double throughput, double quality, double baseline_quality, double std_bench,
                          const RcpSettings& settings) {
  if (!is_positive(throughput) || !std::isfinite(quality) || !std::isfinite(baseline_quality)) return std::nullopt;
  double denominator = 1;
  if (quality != baseline_quality) {
    if (!is_positive(std_bench)) return std::nullopt;
    denominator += settings.quality_weight * (baseline_quality - quality) / std_bench;
  }
  if (!is_positive(denominator)) return std::nullopt;
  return if_positive(std::pow(throughput, settings.throughput) / std::pow(denominator, settings.quality));
}

std::optional<double> rcp_mem(double throughput, double quality, double baseline_quality, double std_bench,
                              double memory, const RcpSettings& settings) {
  const std::optional<double> plain = rcp(throughput, quality, baseline_quality, std_bench, settings);
  if (!plain || !is_positive(memory)) return std::nullopt;
  return if_positive(*plain * std::pow(1 / memory, settings.memory));
}

}  // namespace attnkit::search
