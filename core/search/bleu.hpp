// BLEU of a corpus, equal to sacreBLEU's default: 13a tokens, orders 1 to 4, exponential smoothing.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/search/statistics.hpp"

namespace attnkit::core::search {

// Tokens of the WMT tokeniser mteval-v13a.  text is UTF-8.  Only ASCII punctuation is split off; other letters and
// marks stay inside their token, so that a run of CJK text is one token and "„ja“" keeps its quotes.  Tokens end at
// Unicode white space, the no-break and the ideographic space among them.
std::vector<std::string> tokenize_13a(std::string_view text);

// The counts that BLEU needs of one pair, or of the sum of many; index i is for n-grams of length i + 1.
struct BleuStats {
  std::array<int64_t, 4> matches{};  // n-grams of the hypothesis found in the reference, each at most as often as there
  std::array<int64_t, 4> totals{};   // n-grams of the hypothesis
  int64_t hypothesis = 0;            // tokens
  int64_t reference = 0;             // tokens

  BleuStats& operator+=(const BleuStats& other);
  bool operator==(const BleuStats&) const = default;
};

// Of one hypothesis and its only reference; white space at their ends is dropped first, as sacreBLEU does.
BleuStats bleu_stats(std::string_view hypothesis, std::string_view reference);

// In percent, 0 to 100.  0 without any match, and when no hypothesis has four tokens (sacreBLEU's effective order,
// which would lessen that, is off).
double bleu(const BleuStats& corpus);

// The 95 % percentile bootstrap over pairs, in percent.  Equal arguments give equal intervals on every platform.
// Without pairs or resamples both ends are bleu() of the sum.
Interval bleu_interval(std::span<const BleuStats> pairs, int resamples, uint64_t seed);

}  // namespace attnkit::core::search
