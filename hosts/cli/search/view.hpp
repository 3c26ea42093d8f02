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

// A number with its 95 % interval.
struct Estimate {
  std::optional<double> value, low, high;

  bool has_interval() const { return value && low && high; }
};

struct Measure {
  Estimate own;
  Estimate difference;  // from the baseline on the same examples
  int64_t lists = 0;    // so many examples
};

// At one length: tokens per second, seconds per token, bytes; ratios are placement over baseline.
struct Cost {
  int64_t length = 0;
  std::optional<double> speed, ratio, ratio_low, ratio_high, latency, peak_bytes, baseline_peak_bytes, state_bytes;
};

struct Trial {
  std::string id, status, reason;
  std::vector<std::pair<std::string, std::vector<std::string>>> blocks;  // role; mechanism by layer
  int64_t rank = 0, rank_low = 0, rank_high = 0;                         // from 1; 0: not ranked, or no range
  bool pareto = false, baseline = false, winner = false, homogeneous = false;
  bool top = false;         // in the top group: the winner and what is not worse than it
  bool screened = false;    // dropped before all examples were used
  bool comparable = false;  // measured on as many examples as any
  Measure quality, test;
  std::vector<Measure> buckets;
  std::vector<Cost> costs;
  std::vector<std::pair<int64_t, std::string>> untimed;  // lengths without costs, and why
  Cost cost;                                             // at the length of the ranking; all absent when not measured
  Estimate throughput;                                   // over the baseline's: what RCP counts
  std::optional<double> memory, peak_bytes;              // peak over the baseline's: what RCP_mem counts; its bytes
  Estimate rcp, rcp_mem, rank_ratio;                     // rank_ratio: the rank value over the winner's

  bool named() const { return winner || baseline || homogeneous; }
  bool tied() const { return top && !winner; }
  const std::vector<std::string>* layers(const std::string& role) const;  // NULL: has no such role
};

// The race up to one number of examples.
struct Stage {
  int64_t examples = 0, blocks = 0, raced = 0, kept = 0;
};

struct Refusal {
  std::string block, choice, reason;
};

struct SearchView {
  std::string model, kind, answer, strategy, metric, rank, effort;
  bool lower_is_better = false;  // the metric
  bool classifier = false;       // quality is of classes, not of tokens
  bool per_layer = false;
  bool decodes = true;  // speeds are those of decoding; false: of whole sequences, since nothing was decoded
  int64_t length = 0;   // of the ranking; 0: unknown
  std::vector<std::string> roles, choices, buckets;
  std::vector<Trial> trials;  // ranked by rank, then the others in the document's order
  std::vector<Refusal> refusals;
  std::vector<Stage> stages;
  bool chosen_by_test = false;  // the test set is the data of the race
  bool decided = false;         // the race ended with one placement in the top group
  double confidence = 0.95;     // of the race and the top group
  std::optional<double> std_bench;
  bool weighs_quality = true;  // false: an exponent or a weight of 0 leaves quality out

  const Trial* baseline() const { return first(&Trial::baseline); }
  const Trial* winner() const { return first(&Trial::winner); }
  const Trial* first(bool Trial::*flag) const;  // that has it; NULL: none
  std::vector<const Trial*> named() const;      // baseline, winner, homogeneous ones, each once
  std::vector<const Trial*> tied() const;       // the top group without the winner, by rank
  bool is_screening() const { return effort == "quick"; }
  size_t count(const std::string& status) const;
};

SearchView view_of(const Json& result);

// Members of documents that may not be as they should: nothing in place of an exception.
const Json& member(const Json& object, const char* key);  // null when absent
std::optional<double> number_in(const Json& object, const char* key);
std::string text_in(const Json& object, const char* key);
const Json& list_in(const Json& object, const char* key);  // empty when absent
int64_t integer_in(const Json& object, const char* key);

// "leap", or "leap / softmax / leap" where layers differ.
std::string layers_text(const std::vector<std::string>& layers);
// The name of a placement in figures: "softmax" when it is the same everywhere, else one name for every role.
std::string short_name(const Trial& trial);

// Numbers as tables show them, "n/a" when absent.
std::string fixed_text(std::optional<double> value, int digits);
std::string signed_text(double value, int digits);                                      // "+0.45", "\u22120.45", "0.00"
std::string difference_text(const SearchView& view, std::optional<double> difference);  // of qualities, signed
std::string percent_text(double share);                                                 // "95 %", "99.5 %"
int quality_digits(const SearchView& view);                                             // behind the point
std::string quality_text(const SearchView& view, std::optional<double> value);          // without unit
std::string metric_title(const SearchView& view);                                       // "exact match, %"
const char* quality_unit(const SearchView& view);                                       // " %" or ""
std::string metric_name(const SearchView& view);                                        // "exact match"
std::string rank_name(const SearchView& view);                                          // "RCP_mem", "exact match"
const Estimate& rank_value(const SearchView& view, const Trial& trial);                 // what placements are ranked by
std::string memory_text(std::optional<double> bytes);
std::string latency_text(std::optional<double> seconds);

}  // namespace attnkit::cli
