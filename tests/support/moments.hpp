// What a stored tensor was filled with: means of its numbers' powers, and the largest.
#pragma once
#include "support/array.hpp"

namespace attnkit::test {

struct Moments {
  double mean = 0, square = 0, fourth = 0, largest = 0;
};

Moments moments(const Array& stored);

}  // namespace attnkit::test
