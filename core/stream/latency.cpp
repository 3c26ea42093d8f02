// d_i: read when word i is written.  |X|: source.  tau: the first i with d_i >= |X|, or the last word.
//   AL   = 1/tau sum_{i<=tau} d_i - (i-1) |X| / |Y*|            |Y*| words of the reference
//   LAAL = the same with max(|Y|, |Y*|)                         |Y| words of the output
//   DAL  = 1/|Y| sum_i d'_i - (i-1) |X| / |Y|,  d'_i = max(d_i, d'_{i-1} + |X| / |Y|)
// A first word that is later than the whole source (computing took that long) is AL and LAAL itself.
#include "core/stream/latency.hpp"

#include <algorithm>

namespace attnkit::core::stream {
namespace {

double average_lagging(std::span<const double> delays, double source, double target) {
  if (delays[0] > source) return delays[0];
  const double gamma = target / source;  // divided as SimulEval divides, so that even the last bits agree
  double sum = 0;
  size_t tau = 0;
  while (tau < delays.size()) {
    const double d = delays[tau];
    sum += d - static_cast<double>(tau) / gamma;
    ++tau;
    if (d >= source) break;
  }
  return sum / static_cast<double>(tau);
}

double differentiable_lagging(std::span<const double> delays, double source) {
  const double words = static_cast<double>(delays.size()), gamma = words / source;
  double sum = 0, last = delays[0];
  for (size_t i = 0; i < delays.size(); ++i) {
    if (i > 0) last = std::max(delays[i], last + 1 / gamma);
    sum += last - static_cast<double>(i) / gamma;
  }
  return sum / words;
}

std::optional<Latency> of(std::span<const double> delays, const LatencyLog& log) {
  if (delays.empty() || !(log.source_length > 0)) return {};
  const double words = static_cast<double>(delays.size()), target = log.reference_length.value_or(words);
  return Latency{average_lagging(delays, log.source_length, target),
                 average_lagging(delays, log.source_length, std::max(words, target)),
                 differentiable_lagging(delays, log.source_length)};
}

}  // namespace

std::optional<Latency> latency(const LatencyLog& log) { return of(log.delays, log); }

std::optional<Latency> computation_aware_latency(const LatencyLog& log) { return of(log.elapsed, log); }

std::optional<Latency> mean(std::span<const std::optional<Latency>> all) {
  Latency sum;
  double n = 0;
  for (const std::optional<Latency>& one : all) {
    if (!one) continue;
    sum.al += one->al;
    sum.laal += one->laal;
    sum.dal += one->dal;
    ++n;
  }
  if (n == 0) return {};
  return Latency{sum.al / n, sum.laal / n, sum.dal / n};
}

size_t reference_words(std::string_view reference) {
  return static_cast<size_t>(std::count(reference.begin(), reference.end(), ' ')) + 1;
}

}  // namespace attnkit::core::stream
