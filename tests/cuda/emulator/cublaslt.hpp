// The questions of a test to the stand-in for cuBLASLt.
#pragma once
#include <cstdint>

namespace emulator {

struct Cublaslt {
  bool starts = true, takes_bias = true, takes_any = true;
  int64_t most_rows = INT64_MAX;  // of what it chooses an algorithm for
  uint64_t made = 0, chosen = 0;  // descriptions and algorithms
};
Cublaslt& cublaslt();

}  // namespace emulator
