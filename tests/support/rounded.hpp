// Keys and values as a rounded cache keeps them, written from what its option says.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "support/array.hpp"

namespace attnkit::test {

// The nearest bf16 by arithmetic: eight digits of the mantissa.
inline float as_bf16(float x) {
  int exponent;
  const float mantissa = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(mantissa * 256), exponent - 8);
}

// Rows of keys or values of a head as the option "cache" has them.
inline void round_rows(Array& a, const std::string& type) {
  a.set([&, before = a](int64_t b, int64_t h, int64_t j, int64_t c) {
    if (type == "bf16") return as_bf16(before.at(b, h, j, c));
    float largest = 0;
    for (int64_t i = 0; i < before.width; ++i) largest = std::max(largest, std::fabs(before.at(b, h, j, i)));
    const float scale = largest / 127, steps = before.at(b, h, j, c) * (1 / scale);
    return std::nearbyint(steps) * scale;
  });
}

}  // namespace attnkit::test
