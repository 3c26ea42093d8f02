#include "core/model/dense.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace attnkit {
namespace {

std::vector<float> noise(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

class DenseShape : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(DenseShape, EqualsTheSumInDouble) {
  const auto [inputs, outputs, rows] = GetParam();
  Threads threads(2);
  const std::vector<float> w = noise(static_cast<size_t>(inputs * outputs), 1), b = noise(outputs, 2),
                           x = noise(static_cast<size_t>(inputs * rows), 3);
  std::vector<float> y(static_cast<size_t>(outputs * rows) + 1, -7.0f);
  Dense(inputs, outputs, w, b).apply(threads, x.data(), inputs, y.data(), outputs, rows);
  double error = 0, scale = 0;
  for (int r = 0; r < rows; ++r)
    for (int o = 0; o < outputs; ++o) {
      double sum = b[o];
      for (int k = 0; k < inputs; ++k) sum += static_cast<double>(w[o * inputs + k]) * x[r * inputs + k];
      error += (y[r * outputs + o] - sum) * (y[r * outputs + o] - sum);
      scale += sum * sum;
    }
  EXPECT_LE(std::sqrt(error), 5e-6 * std::sqrt(scale));
  EXPECT_EQ(y.back(), -7.0f) << "wrote past the end";
}

INSTANTIATE_TEST_SUITE_P(Shapes, DenseShape,
                         testing::Values(std::tuple(1, 1, 1), std::tuple(3, 5, 2), std::tuple(128, 128, 1),
                                         std::tuple(128, 150, 9), std::tuple(64, 33, 17), std::tuple(256, 128, 70),
                                         std::tuple(7, 16, 0)));

TEST(Dense, ARowDoesNotDependOnTheRowsBesideItOrOnThreads) {
  const int inputs = 100, outputs = 70, rows = 37;
  Threads one(1), two(2);
  const Dense dense(inputs, outputs, noise(inputs * outputs, 1), noise(outputs, 2));
  const std::vector<float> x = noise(inputs * rows, 3);
  std::vector<float> together(outputs * rows), alone(outputs);
  dense.apply(two, x.data(), inputs, together.data(), outputs, rows);
  for (int r = 0; r < rows; ++r) {
    dense.apply(one, x.data() + r * inputs, inputs, alone.data(), outputs, 1);
    for (int o = 0; o < outputs; ++o) ASSERT_EQ(alone[o], together[r * outputs + o]) << r << ", " << o;
  }
}

TEST(Dense, LeavesOutTheBias) {
  Threads threads(1);
  const float x = 3;
  float y = 0;
  Dense(1, 1, {2.0f}, {}).apply(threads, &x, 1, &y, 1, 1);
  EXPECT_EQ(y, 6.0f);
}

}  // namespace
}  // namespace attnkit
