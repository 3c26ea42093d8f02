// The three benchmarks of attnkit bench, and how they give their timings.
#pragma once

#include <vector>

#include "core/base/clock.hpp"
#include "hosts/cli/arguments.hpp"
#include "hosts/cli/io/inputs.hpp"
#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

using namespace core;

// --block: one more token or whole sequences of one mechanism, beside another mechanism.
Exit bench_block(const Arguments& arguments);
// A whole model on whole sequences, beside another model.
Exit bench_model(const Arguments& arguments);
// --sessions: many sessions of a model at once, their memory, their speed and the waiting of threads.
Exit bench_sessions(const Arguments& arguments);

struct Timing {
  double median, first_quartile, third_quartile;  // seconds
  size_t repetitions;
};
Timing timing_of(const std::vector<double>& seconds);
void add_timing(const Timing& timing, Json& to);
std::string quartiles_text(const Timing& timing);

// n random ids of a vocabulary, none of which ends a target.
Ids random_ids(const attnkit_model_info& info, int32_t vocabulary, int64_t n, uint32_t seed);

// A batch of random frames of speech that make `length` rows of the encoder.
std::vector<std::vector<float>> random_frames(const Facts& facts, int64_t batch, int64_t length);

}  // namespace attnkit::cli
