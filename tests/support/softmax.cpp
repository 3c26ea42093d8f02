#include "support/softmax.hpp"

#include <algorithm>
#include <cmath>

namespace attnkit::test {

double log_sum(const Row& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double y : x) sum += std::exp(y - largest);
  return largest + std::log(sum);
}

Row softmax(Row x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& y : x) sum += y = std::exp(y - largest);
  for (double& y : x) y /= sum;
  return x;
}

}  // namespace attnkit::test
