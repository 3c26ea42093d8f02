// Normally distributed numbers.
#pragma once

#include <random>
#include <vector>

namespace attnkit::core {

inline std::vector<float> noise(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

}  // namespace attnkit::core
