// A search's result document as typed values, for whatever shows it: what is missing or of another type is simply
// absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

struct Measure {
  std::optional<double> value, low, high;  // low and high: the 95 % interval
  std::optional<double> difference;        // to the baseline's value on the same examples
  int64_t lists = 0;
};

// At one length: tokens per second, seconds per token, bytes; ratios are placement over baseline.
struct Cost {
  int64_t length = 0;
  std::optional<double> speed, ratio, ratio_low, ratio_high, latency, peak_bytes, baseline_peak_bytes, state_bytes;
};

struct Trial {
  std::string id, status, reason;
  std::vector<std::pair<std::string, std::vector<std::string>>> blocks;  // role; mechanism by layer
  int64_t rank = 0;                                                      // from 1; 0: not ranked
  bool pareto = false, baseline = false, winner = false, homogeneous = false;
  Measure quality;
  std::vector<Measure> buckets;
  std::vector<Cost> costs;
  std::vector<std::pair<int64_t, std::string>> untimed;  // lengths without costs, and why
  Cost cost;                                             // at the length of the ranking; all absent when not measured
  std::optional<double> rcp, rcp_mem;
  Measure greedy_data, greedy_test;  // exact
  std::optional<double> bleu_data, bleu_test;

  bool named() const { return winner || baseline || homogeneous; }
  const std::vector<std::string>* layers(const std::string& role) const;  // NULL: has no such role
};

struct Refusal {
  std::string block, choice, reason;
};

struct SearchView {
  std::string model, kind, answer, metric, rank;
  bool lower_is_better = false;  // the metric
  bool classifier = false;       // quality is of classes, not of tokens
  bool per_layer = false;
  bool decodes = true;  // speeds are those of decoding; false: of whole sequences, since nothing was decoded
  int64_t length = 0;   // of the ranking; 0: unknown
  std::vector<std::string> roles, choices, buckets;
  std::vector<Trial> trials;  // ranked by rank, then the others in the document's order
  std::vector<Refusal> refusals;
  std::optional<double> std_bench;

  const Trial* baseline() const { return first(&Trial::baseline); }
  const Trial* winner() const { return first(&Trial::winner); }
  const Trial* first(bool Trial::*flag) const;  // that has it; NULL: none
  std::vector<const Trial*> named() const;      // baseline, winner, homogeneous ones, each once
  size_t count(const std::string& status) const;
};

SearchView view_of(const Json& result);

// Members of documents that may not be as they should: nothing in place of an exception.
const Json& member(const Json& object, const char* key);  // null when absent
std::optional<double> number_in(const Json& object, const char* key);
std::string text_in(const Json& object, const char* key);
int64_t integer_in(const Json& object, const char* key);

// "leap", or "leap / softmax / leap" where layers differ.
std::string layers_text(const std::vector<std::string>& layers);
// The name of a placement in figures: "softmax" when it is the same everywhere, else one name for every role.
std::string short_name(const Trial& trial);

// Numbers as tables show them, "n/a" when absent.
std::string fixed_text(std::optional<double> value, int digits);
std::string signed_text(double value, int digits);                              // "+0.45", "\u22120.45", "0.00"
std::string quality_text(const SearchView& view, std::optional<double> value);  // without unit
std::string metric_title(const SearchView& view);                               // "exact match, %"
const char* quality_unit(const SearchView& view);                               // " %" or ""
std::string metric_name(const SearchView& view);                                // "exact match"
std::string memory_text(std::optional<double> bytes);
std::string latency_text(std::optional<double> seconds);

}  // namespace attnkit::cli
