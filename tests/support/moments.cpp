#include "support/moments.hpp"

#include "support/matrix.hpp"

namespace attnkit::test {

Moments moments(const Array& stored) {
  Moments m;
  const auto count = static_cast<double>(stored.rows);
  for (int64_t i = 0; i < stored.rows; ++i) {
    const double x = stored.at(0, 0, i, 0);
    m.mean += x / count;
    m.square += x * x / count;
    m.fourth += x * x * x * x / count;
    m.largest = worse(m.largest, std::abs(x));
  }
  return m;
}

}  // namespace attnkit::test
