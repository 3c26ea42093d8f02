// The sizes of a nystromformer block.
#pragma once
#include <attnkit/plugin.hpp>

namespace nystromformer {

struct Shape : attnkit::Widths {
  int64_t landmarks, length, iterations, kernel;  // kernel 0: no convolution
  // Positions that share a landmark in a row of n; 1 or less: the row needs no landmarks.
  int64_t segment(int64_t n) const { return length > 0 ? length / landmarks : (n + landmarks - 1) / landmarks; }
  uint64_t flops(int64_t n, int64_t m) const {  // of a head
    const int64_t pair = 2 * (d + e) + 5, l = landmarks, convolution = 2 * kernel * n * e;
    if (n == 0 || m == 0) return 0;
    if (segment(std::max(n, m)) <= 1) return static_cast<uint64_t>(pair * n * m + convolution);
    return static_cast<uint64_t>(pair * l * (n + m + l) + 8 * iterations * l * l * l + convolution);
  }
};

}  // namespace nystromformer
