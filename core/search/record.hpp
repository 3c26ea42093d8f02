// What a search knows of one placement.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/search/placement.hpp"
#include "core/search/quality.hpp"
#include "core/search/settings.hpp"
#include "core/search/statistics.hpp"

namespace attnkit::search {

// A quality with its 95 % interval and what it was measured on.
struct Quality {
  double value = 0;
  Interval interval{0, 0};
  int64_t lists = 0;
};

struct Record {
  enum class Status { usable, refused, failed };

  Placement placement;
  std::string id;
  Status status = Status::usable;
  std::string reason;  // why not
  // Teacher-forced sums by length bucket, of the lists [first, second) in the data set's order.
  std::map<std::pair<int64_t, int64_t>, std::vector<QualitySums>> quality;
  std::map<int64_t, nlohmann::json> costs;       // by length: an entry of "at" of the worker's answer
  std::map<int64_t, std::string> untimed;        // by length: why there are no costs
  nlohmann::json real;                           // the timing on the data set's own lengths
  std::map<std::string, nlohmann::json> greedy;  // "data 0-500", "test 0-2000": the worker's answers

  bool usable() const { return status == Status::usable; }
  // Lists measured from the first on, without a gap.
  int64_t lists(Metric metric) const;
  // Sums of the first `lists` by bucket; segments must end there.
  std::vector<QualitySums> sums(int64_t lists) const;
};

// Of the first `lists` lists; no value: not measured.  BLEU comes from greedy decoding, all else from sums.
std::optional<Quality> quality_of(const Record& record, Metric metric, int64_t lists);

// Throughput relative to the baseline at a length: decoding, or of a model without decoder the whole pass.
std::optional<double> throughput_of(const Record& record, int64_t length);

// Peak memory relative to the baseline at a length.
std::optional<double> memory_of(const Record& record, int64_t length);

// A number of the costs at a length, if it is there.
std::optional<double> cost_of(const Record& record, int64_t length, const char* key);

}  // namespace attnkit::search
