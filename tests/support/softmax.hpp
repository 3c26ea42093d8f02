// Softmax in float64, safe for scores of any size.
#pragma once
#include "support/matrix.hpp"

namespace attnkit::test {

// The log of the sum of e^x over these numbers, and each e^x over that sum.
double log_sum(const Row& x);
Row softmax(Row x);

}  // namespace attnkit::test
