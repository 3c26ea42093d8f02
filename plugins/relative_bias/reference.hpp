// T5's attention in float64, as its authors' code has it, one head at a time.
#pragma once
#include <cmath>
#include <cstdint>

namespace attnkit::test {

// relative_position_bucket of mesh_tensorflow/transformer/transformer_layers.py, whose arithmetic is in float.
inline int64_t bucket(int64_t i, int64_t j, int64_t count, int64_t longest, bool causal) {
  int64_t n = i - j, first = 0;
  if (!causal) {
    count /= 2;
    if (n < 0) first = count;
    n = std::abs(n);
  }
  n = std::max<int64_t>(n, 0);
  const int64_t exact = count / 2;
  if (n < exact) return first + n;
  const float part = std::log(static_cast<float>(n) / static_cast<float>(exact)) /
                     static_cast<float>(std::log(static_cast<double>(longest) / static_cast<double>(exact)));
  const auto far = exact + static_cast<int64_t>(part * static_cast<float>(count - exact));
  return first + std::min(far, count - 1);
}

}  // namespace attnkit::test
