#include "core/model/rotary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>

namespace attnkit::core {
namespace {

RotaryTable table(int width) {
  RotaryTable t;
  t.width = width;
  return t;
}

std::vector<float> numbers(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> all(n);
  for (float& x : all) x = normal(random);
  return all;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// The paper's Eq. 34, in double and without tables.
std::vector<double> expected(const std::vector<float>& x, const RotaryTable& t, double position,
                             const std::function<double(double)>& scaled) {
  std::vector<double> y(x.begin(), x.end());
  for (int i = 0; i < t.width / 2; ++i) {
    const int a = t.layout == RotaryLayout::halves ? i : 2 * i;
    const int b = t.layout == RotaryLayout::halves ? i + t.width / 2 : 2 * i + 1;
    const double angle = position * scaled(std::pow(t.base, -2.0 * i / t.width));
    y[a] = t.attention_factor * (x[a] * std::cos(angle) - x[b] * std::sin(angle));
    y[b] = t.attention_factor * (x[b] * std::cos(angle) + x[a] * std::sin(angle));
  }
  return y;
}

void expect_turned(const RotaryTable& t, const std::function<double(double)>& scaled) {
  constexpr int64_t width = 24, most = 200000;
  const Rotary rotary(t, most);
  for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{256}, int64_t{77777}, most - 1}) {
    const std::vector<float> x = numbers(3 * width, 7);
    std::vector<float> y = x;
    rotary.turn(y.data(), 3, width, position, position + 1);
    for (int h = 0; h < 3; ++h) {
      const std::vector<float> head(x.begin() + h * width, x.begin() + (h + 1) * width);
      const std::vector<double> wanted = expected(head, t, static_cast<double>(position), scaled);
      for (int c = 0; c < width; ++c)
        EXPECT_NEAR(y[h * width + c], wanted[c], 2e-6) << position << ' ' << h << ' ' << c;
    }
  }
}

TEST(Rotary, IsTheFormulaAtEveryPositionInBothLayouts) {
  for (const RotaryLayout layout : {RotaryLayout::halves, RotaryLayout::interleaved})
    for (const int width : {24, 10, 2}) {
      RotaryTable t = table(width);
      t.layout = layout;
      expect_turned(t, [](double speed) { return speed; });
    }
}

TEST(Rotary, IsSlowerByTheFactorWhereItIsScaled) {
  RotaryTable t = table(24);
  t.scaling = RotaryScaling::linear;
  t.factor = 4;
  expect_turned(t, [](double speed) { return speed / 4; });
}

TEST(Rotary, KeepsFastTurnsAndSlowsLongOnesAsLlama3) {
  RotaryTable t = table(24);
  t.scaling = RotaryScaling::llama3;
  t.factor = 8;
  t.original_length = 64;
  int kept = 0, slowed = 0, between = 0;
  expect_turned(t, [&](double speed) {
    const double length = 2 * M_PI / speed;
    if (length < 64 / 4.0) return ++kept, speed;
    if (length > 64 / 1.0) return ++slowed, speed / 8;
    const double smooth = (64 / length - 1) / (4 - 1);
    return ++between, (1 - smooth) * speed / 8 + smooth * speed;
  });
  EXPECT_GT(kept, 0);
  EXPECT_GT(slowed, 0);
  EXPECT_GT(between, 0);
}

TEST(Rotary, TurnsEachPairSlowerByItsOwnAsLongRope) {
  RotaryTable t = table(24);
  t.scaling = RotaryScaling::longrope;
  t.attention_factor = 1.25;
  t.original_length = 1 << 20;
  std::map<double, double> slower;
  for (int i = 0; i < 12; ++i) {
    t.slower.push_back(1 + 0.7 * i * i);
    slower[std::pow(t.base, -2.0 * i / t.width)] = t.slower.back();
  }
  expect_turned(t, [&](double speed) { return speed / slower.at(speed); });
}

TEST(Rotary, TurnsEachPairSlowerByItsOwnBeforeItIsScaled) {
  RotaryTable t = table(24);
  std::map<double, double> slower;
  for (int i = 0; i < 12; ++i) {
    t.slower.push_back(1 + 0.3 * i);
    slower[std::pow(t.base, -2.0 * i / t.width)] = t.slower.back();
  }
  expect_turned(t, [&](double speed) { return speed / slower.at(speed); });
  t.scaling = RotaryScaling::linear;
  t.factor = 4;
  expect_turned(t, [&](double speed) { return speed / slower.at(speed) / 4; });
}

TEST(Rotary, TurnsAllOfALongTextByTheLongFactors) {
  RotaryTable near = table(8);
  near.scaling = RotaryScaling::longrope;
  near.original_length = 100;
  near.slower = {1, 1.5, 2, 3};
  near.slower_long = {2, 4, 6, 8};
  RotaryTable far = near;
  far.slower = near.slower_long;
  const Rotary both(near, 400), slow(far, 100);
  const std::vector<float> x = numbers(8, 5);
  const auto turned = [&](const Rotary& rotary, int64_t length) {
    std::vector<float> y = x;
    rotary.turn(y.data(), 1, 8, 40, length);
    return y;
  };
  EXPECT_EQ(turned(both, 101), turned(slow, 41));
  EXPECT_NE(turned(both, 100), turned(slow, 41));
  EXPECT_EQ(turned(both, 100), turned(both, 41));
}

TEST(Rotary, LeavesProductsToTheDistanceAlone) {
  const Rotary rotary(table(32), 5000);
  const std::vector<float> q = numbers(32, 1), k = numbers(32, 2);
  const auto product = [&](int64_t m, int64_t n) {
    std::vector<float> a = q, b = k;
    rotary.turn(a.data(), 1, 32, m, m + 1);
    rotary.turn(b.data(), 1, 32, n, n + 1);
    return dot(a, b);
  };
  for (const int64_t distance : {0, 1, 300})
    for (const int64_t n : {0, 17, 1024, 4000}) EXPECT_NEAR(product(n + distance, n), product(distance, 0), 1e-4);
  EXPECT_GT(std::abs(product(3, 0) - product(0, 0)), 1e-2);
}

TEST(Rotary, LeavesTheOtherChannelsAsTheyAre) {
  const Rotary rotary(table(6), 100);
  const std::vector<float> x = numbers(10, 3);
  std::vector<float> y = x;
  rotary.turn(y.data(), 1, 10, 9, 10);
  EXPECT_TRUE(std::equal(x.begin() + 6, x.end(), y.begin() + 6));
  EXPECT_FALSE(std::equal(x.begin(), x.begin() + 6, y.begin()));
}

}  // namespace
}  // namespace attnkit::core
