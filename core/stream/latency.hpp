// The lag of a simultaneous translation behind its source, equal to SimulEval 1.1.4 on the same log.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace attnkit::core::stream {

// One output, in any unit of the source: words, tokens, milliseconds.
struct LatencyLog {
  std::vector<double> delays;   // per written word: how much of the source had been read
  std::vector<double> elapsed;  // the same, and the time that computing had taken since the start; may be empty
  double source_length = 0;
  std::optional<double> reference_length;  // words of the reference; without one the output's own
};

struct Latency {
  double al = 0;    // average lagging (Ma et al. 2019), |Y| of the reference
  double laal = 0;  // length-adaptive (Papi et al. 2022): the longer of reference and output
  double dal = 0;   // differentiable (Arivazhagan et al. 2019): output alone, every word counts
};

// Of log.delays.  Nothing for an output without words, which SimulEval leaves out of its means as well.  The source's
// length, and the reference's where there is one, must be positive.
std::optional<Latency> latency(const LatencyLog& log);
// Of log.elapsed: computation-aware.
std::optional<Latency> computation_aware_latency(const LatencyLog& log);

// Over the outputs that have one.
std::optional<Latency> mean(std::span<const std::optional<Latency>> all);

// Words as SimulEval counts them in a reference: pieces between single spaces.
size_t reference_words(std::string_view reference);

}  // namespace attnkit::core::stream
