// Times one mechanism by itself, decoding token by token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "failure.hpp"

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

// The contexts are timed in turns, so that a drift of the machine meets all of them.  Throws Failure: plugin (no such
// mechanism, a refusal), usage (options
// that are no TOML, a state larger than the memory), interrupted.
std::vector<Timing> time_block(const Runtime& runtime, const BenchSetup& setup);

}  // namespace attnkit::cli
