// Times a whole model on whole sequences, beside another one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "hosts/cli/failure.hpp"

namespace attnkit::cli {

struct ModelTiming {
  int64_t length;                                 // tokens of the source and, where there is one, of the target
  double median, first_quartile, third_quartile;  // seconds of one batch
  size_t repetitions;
  std::optional<uint64_t>
      peak_memory;              // bytes that the first batch needed beside the loaded model; where the system tells
  std::optional<double> speed;  // median over the repetitions of the other model's seconds over this one's
};

struct ModelBench {
  int64_t batch = 1;
  std::vector<int64_t> lengths;
};

// Random tokens, a batch at a time.  With another model (open_other may be empty) the two take turns, so that a drift
// of the machine meets both.  Each length has models of its own, since one that has run keeps its buffers; memory is
// counted in the first batch, alone.  Throws Failure: usage (a length that a model does not take), interrupted.
using OpenModel = std::function<Model()>;
std::vector<ModelTiming> time_model(const OpenModel& open, const OpenModel& open_other, const ModelBench& setup);

}  // namespace attnkit::cli
