// Times one mechanism by itself, decoding token by token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hosts/cli/failure.hpp"

namespace attnkit::cli {

struct BenchSetup {
  std::string mechanism, options;
  uint32_t role = ATTN_DECODER_SELF, heads = 8, threads = 1;
  int32_t width = 64;
  std::vector<int64_t> contexts;
};

struct Timing {
  int64_t context;
  double median, first_quartile, third_quartile;  // seconds of one token
  size_t repetitions;
  uint64_t state_bytes, flops;
};

// For each mechanism its contexts, all timed in turns, so that a drift of the machine meets all of them.  Throws
// Failure: plugin (no such mechanism, a refusal), usage (options that are no TOML, a state larger than the memory),
// interrupted.
std::vector<std::vector<Timing>> time_blocks(const Runtime& runtime, const std::vector<BenchSetup>& setups);

// From which context on a mechanism's token costs less than the other's, whose cost grows.
struct Crossover {
  enum Place { below, between, beyond } place;  // the shortest context measured, two of them, the longest
  double context;                               // between: interpolated, both axes logarithmic; else that context
};

// own and other: the same contexts, in any order, at least one.
Crossover crossover_of(std::vector<Timing> own, std::vector<Timing> other);
std::string text_of(const Crossover& crossover);  // "below 64", "about 130", "beyond 65,536"

}  // namespace attnkit::cli
