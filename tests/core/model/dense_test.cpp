#include "core/model/dense/dense.hpp"

#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "core/base/error.hpp"
#include "core/base/int4.hpp"
#include "core/base/sha256.hpp"
#include "core/model/dense/walk.hpp"
#include "noise.hpp"

namespace attnkit::core {
namespace {

// The sums of a row in double, from what the layer says its weights are.
std::vector<double> sums(const Dense& dense, const std::vector<float>& bias, const float* x) {
  std::vector<double> y(bias.begin(), bias.end());
  std::vector<float> w(static_cast<size_t>(dense.inputs()));
  for (size_t o = 0; o < y.size(); ++o) {
    dense.row(static_cast<int64_t>(o), w.data());
    for (size_t k = 0; k < w.size(); ++k) y[o] += static_cast<double>(w[k]) * x[k];
  }
  return y;
}

// Returns the error of y against the sums of all rows of x, relative to these: root mean squares.
double apart(const std::vector<float>& y, const Dense& dense, const std::vector<float>& bias,
             const std::vector<float>& x) {
  double error = 0, scale = 0;
  for (size_t r = 0; r * static_cast<size_t>(dense.inputs()) < x.size(); ++r) {
    const std::vector<double> exact = sums(dense, bias, x.data() + r * static_cast<size_t>(dense.inputs()));
    for (size_t o = 0; o < exact.size(); ++o) {
      error += std::pow(y[r * exact.size() + o] - exact[o], 2);
      scale += std::pow(exact[o], 2);
    }
  }
  return scale > 0 ? std::sqrt(error / scale) : error;
}

class DenseShape : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(DenseShape, EqualsTheSumInDouble) {
  const auto [inputs, outputs, rows] = GetParam();
  Threads threads(2);
  const std::vector<float> w = noise(static_cast<size_t>(inputs * outputs), 1), b = noise(outputs, 2),
                           x = noise(static_cast<size_t>(inputs * rows), 3);
  const Dense dense(inputs, outputs, w, b);
  std::vector<float> y(static_cast<size_t>(outputs * rows) + 1, -7.0f);
  dense.apply(threads, x.data(), inputs, y.data(), outputs, rows);
  EXPECT_LE(apart(y, dense, b, x), 5e-6);
  EXPECT_EQ(y.back(), -7.0f) << "wrote past the end";
}

// With weights and inputs that int8 holds as they are, nothing is rounded but the last step.
TEST_P(DenseShape, OfInt8IsExactOnIntegers) {
  const auto [inputs, outputs, rows] = GetParam();
  Threads threads(2);
  std::mt19937 random(1);
  const auto integers = [&](int n, int width) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = static_cast<float>(static_cast<int>(random() % 255) - 127);
    for (int i = 0; i < n; i += width) values[static_cast<size_t>(i)] = 127;  // so that the scale is 1
    return values;
  };
  const std::vector<float> w = integers(inputs * outputs, inputs), x = integers(inputs * rows, inputs),
                           b(static_cast<size_t>(outputs), 3.0f);
  const Dense dense(inputs, outputs, w, b, WeightType::int8);
  std::vector<float> y(static_cast<size_t>(outputs * rows) + 1, -7.0f);
  dense.apply(threads, x.data(), inputs, y.data(), outputs, rows);
  for (int r = 0; r < rows; ++r) {
    const std::vector<double> exact = sums(dense, b, x.data() + r * inputs);
    for (int o = 0; o < outputs; ++o) ASSERT_EQ(y[r * outputs + o], static_cast<float>(exact[o])) << r << ", " << o;
  }
  EXPECT_EQ(y.back(), -7.0f) << "wrote past the end";
}

TEST_P(DenseShape, OfInt8IsNearTheSumInDouble) {
  const auto [inputs, outputs, rows] = GetParam();
  Threads threads(2);
  const std::vector<float> w = noise(static_cast<size_t>(inputs * outputs), 1), b = noise(outputs, 2),
                           x = noise(static_cast<size_t>(inputs * rows), 3);
  std::vector<float> y(static_cast<size_t>(outputs * rows)), near(static_cast<size_t>(outputs));
  Dense(inputs, outputs, w, b, WeightType::int8).apply(threads, x.data(), inputs, y.data(), outputs, rows);
  const Dense f32(inputs, outputs, w, b);
  // Two roundings to 1/127 of the largest of a row, each uniform.
  EXPECT_LE(apart(y, f32, b, x), 0.03);
}

TEST_P(DenseShape, OfBf16EqualsTheSumOfItsRoundedWeights) {
  const auto [inputs, outputs, rows] = GetParam();
  Threads threads(2);
  const std::vector<float> w = noise(static_cast<size_t>(inputs * outputs), 1), b = noise(outputs, 2),
                           x = noise(static_cast<size_t>(inputs * rows), 3);
  const Dense dense(inputs, outputs, w, b, WeightType::bf16);
  std::vector<float> y(static_cast<size_t>(outputs * rows)), rounded(static_cast<size_t>(inputs));
  dense.apply(threads, x.data(), inputs, y.data(), outputs, rows);
  EXPECT_LE(apart(y, dense, b, x), 5e-6);
  for (int o = 0; o < outputs; ++o) {
    dense.row(o, rounded.data());
    for (int k = 0; k < inputs; ++k) ASSERT_NEAR(rounded[k], w[o * inputs + k], std::abs(w[o * inputs + k]) / 256);
  }
}

// Weights of 4 bits, one of -8 in each block, and inputs that 8 bits hold: only the last steps round.
TEST_P(DenseShape, OfInt4IsExactOnIntegers) {
  const auto [inputs, outputs, rows] = GetParam();
  Threads threads(2);
  std::mt19937 random(1);
  std::vector<float> w(static_cast<size_t>(inputs * outputs)), x(static_cast<size_t>(inputs * rows)),
      b(static_cast<size_t>(outputs), 3.0f);
  for (int i = 0; i < inputs * outputs; ++i)
    w[i] = i % inputs % 32 == 0 ? -8.0f : static_cast<float>(static_cast<int>(random() % 16) - 8);
  for (int i = 0; i < inputs * rows; ++i)
    x[i] = i % inputs % 32 == 0 ? 127.0f : static_cast<float>(static_cast<int>(random() % 255) - 127);
  const Dense dense(inputs, outputs, w, b, WeightType::int4);
  std::vector<float> y(static_cast<size_t>(outputs * rows) + 1, -7.0f), kept(static_cast<size_t>(inputs));
  dense.apply(threads, x.data(), inputs, y.data(), outputs, rows);
  for (int o = 0; o < outputs; ++o) {
    dense.row(o, kept.data());
    for (int k = 0; k < inputs; ++k) ASSERT_EQ(kept[k], w[o * inputs + k]) << o << ", " << k;
  }
  for (int r = 0; r < rows; ++r) {
    const std::vector<double> exact = sums(dense, b, x.data() + r * inputs);
    for (int o = 0; o < outputs; ++o) ASSERT_EQ(y[r * outputs + o], static_cast<float>(exact[o])) << r << ", " << o;
  }
  EXPECT_EQ(y.back(), -7.0f) << "wrote past the end";
}

TEST_P(DenseShape, OfInt4IsNearTheSumOfItsRoundedWeights) {
  const auto [inputs, outputs, rows] = GetParam();
  Threads threads(2);
  const std::vector<float> w = noise(static_cast<size_t>(inputs * outputs), 1), b = noise(outputs, 2),
                           x = noise(static_cast<size_t>(inputs * rows), 3);
  const Dense dense(inputs, outputs, w, b, WeightType::int4);
  std::vector<float> y(static_cast<size_t>(outputs * rows)), kept(static_cast<size_t>(inputs));
  dense.apply(threads, x.data(), inputs, y.data(), outputs, rows);
  EXPECT_LE(apart(y, dense, b, x), 0.02);
  for (int o = 0; o < outputs; ++o) {
    dense.row(o, kept.data());
    for (int first = 0; first < inputs; first += 32) {
      float most = 0;
      const int end = std::min(inputs, first + 32);
      for (int k = first; k < end; ++k) most = std::max(most, std::abs(w[o * inputs + k]));
      // Half a step, and a whole one at the end that 7 stands for.
      for (int k = first; k < end; ++k) ASSERT_LE(std::abs(kept[k] - w[o * inputs + k]), most / 8 * 1.00001f);
    }
  }
}

// Blocks of a step and a least number of their own, as GGUF's Q4_1 and Q4_K have them, keep their numbers.
std::vector<float> evenly_spaced(int outputs, int inputs) {
  std::mt19937 random(3);
  std::vector<float> w(static_cast<size_t>(inputs * outputs));
  float step = 1, least = 0;
  for (int i = 0; i < inputs * outputs; ++i) {
    if (i % inputs % 32 == 0) {
      step = std::ldexp(static_cast<float>(random() % 1024 + 1024), -14);
      least = -step * 0.01f * static_cast<float>(random() % 2000);
    }
    w[i] = step * static_cast<float>(random() % 16) + least;
  }
  return w;
}

TEST(DenseInt4, KeepsNumbersThatAreEvenlySpaced) {
  constexpr int inputs = 320, outputs = 37, rows = 5;
  Threads threads(2);
  const std::vector<float> w = evenly_spaced(outputs, inputs), b = noise(outputs, 2), x = noise(inputs * rows, 3);
  const Dense dense(inputs, outputs, w, b, WeightType::int4);
  std::vector<float> y(outputs * rows), kept(inputs);
  for (int o = 0; o < outputs; ++o) {
    dense.row(o, kept.data());
    for (int k = 0; k < inputs; ++k) ASSERT_NEAR(kept[k], w[o * inputs + k], 1e-6) << o << ", " << k;
  }
  dense.apply(threads, x.data(), inputs, y.data(), outputs, rows);
  EXPECT_LE(apart(y, dense, b, x), 0.02);
}

// Inputs have a scale for each block, so that one which is large takes no bits from the others.
TEST(DenseInt4, RoundsABlockOfInputsApartFromOthers) {
  const int inputs = 200, outputs = 40;
  Threads threads(2);
  const std::vector<float> w = noise(outputs * inputs, 1), b = noise(outputs, 2), small = noise(inputs, 3);
  const Dense dense(inputs, outputs, w, b, WeightType::int4);
  std::vector<float> large = small, y(outputs), kept(inputs);
  large[70] = 1000.0f;
  dense.apply(threads, large.data(), inputs, y.data(), inputs, 1);
  // In its block a step is 1000 / 127, so that all others of it become zero.
  for (int o = 0; o < outputs; ++o) {
    dense.row(o, kept.data());
    double expected = b[o];
    for (int k = 0; k < inputs; ++k)
      if (k / 32 != 2 || k == 70) expected += double{kept[k]} * large[k];
    ASSERT_NEAR(y[o], expected, 0.5) << o;  // with one scale for the row no other input would count
  }
}

TEST(DenseInt4, RoundsAWholeBlockThatIsNotEvenlySpacedWithoutAnOffset) {
  std::vector<float> w = evenly_spaced(1, 32);
  int8_t q[32];
  ASSERT_NE(round_to_int4(w.data(), 32, q).offset, 0);
  EXPECT_EQ(round_to_int4(w.data(), 31, q).offset, 0);
  w[9] += 0.3f * round_to_int4(w.data(), 32, q).scale;
  EXPECT_EQ(round_to_int4(w.data(), 32, q).offset, 0);
  w[9] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(round_to_int4(w.data(), 32, q).scale));
}

// All instructions that this machine has for bytes, few rows and many, with outputs and inputs that fill no tile.
TEST_P(DenseShape, OfIntegersHasTheSameBitsByAllInstructions) {
  const auto [inputs, outputs, rows] = GetParam();
  Threads two(2);
  const std::vector<float> w = noise(static_cast<size_t>(inputs * outputs), 1), b = noise(outputs, 2),
                           x = noise(static_cast<size_t>(inputs * rows), 3);
  for (const auto make : {int8_weights, int4_weights}) {
    std::vector<float> expected(static_cast<size_t>(outputs * rows), 1.0f);
    make({inputs, outputs, w, b}, ByteKernel::plain)
        ->run(two, {x.data(), inputs, expected.data(), outputs, rows}, {Activation::gelu, false});
    for (const ByteKernel kernel : {ByteKernel::avx2, ByteKernel::avx_vnni, ByteKernel::vnni, ByteKernel::amx,
                                    ByteKernel::neon, ByteKernel::dot}) {
      if (!has(kernel)) continue;
      std::vector<float> y(expected.size(), 2.0f);
      make({inputs, outputs, w, b}, kernel)
          ->run(two, {x.data(), inputs, y.data(), outputs, rows}, {Activation::gelu, false});
      ASSERT_TRUE(std::ranges::equal(y, expected, {}, std::bit_cast<uint32_t, float>, std::bit_cast<uint32_t, float>))
          << (make == int8_weights ? "int8, " : "int4, ") << static_cast<int>(kernel);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DenseShape,
                         testing::Values(std::tuple(1, 1, 1), std::tuple(3, 5, 2), std::tuple(128, 128, 1),
                                         std::tuple(128, 150, 9), std::tuple(64, 33, 17), std::tuple(256, 128, 70),
                                         std::tuple(300, 300, 3), std::tuple(130, 270, 5), std::tuple(7, 16, 0),
                                         std::tuple(65, 47, 33), std::tuple(1100, 100, 101), std::tuple(32, 16, 16),
                                         std::tuple(48, 40, 7)));

class DenseType : public testing::TestWithParam<WeightType> {};

TEST_P(DenseType, ARowDoesNotDependOnTheRowsBesideItOrOnThreads) {
  Threads one(1), two(2), many(7);
  for (const auto& [inputs, outputs] : {std::pair(100, 70), std::pair(513, 600)}) {
    const Dense dense(inputs, outputs, noise(static_cast<size_t>(inputs * outputs), 1), noise(outputs, 2), GetParam());
    const std::vector<float> x = noise(static_cast<size_t>(inputs) * 150, 3);
    std::vector<float> alone(static_cast<size_t>(outputs) * 150);
    for (int r = 0; r < 150; ++r)
      dense.apply(one, x.data() + r * inputs, inputs, alone.data() + r * outputs, outputs, 1);
    for (const int rows : {2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 37, 64, 65, 150})
      for (Threads* threads : {&one, &two, &many}) {
        std::vector<float> together(static_cast<size_t>(outputs * rows));
        dense.apply(*threads, x.data(), inputs, together.data(), outputs, rows);
        for (int i = 0; i < outputs * rows; ++i)
          ASSERT_EQ(alone[i], together[i]) << rows << " rows, " << threads->workers() << " threads, number " << i;
      }
  }
}

TEST_P(DenseType, AddsToWhatIsThere) {
  Threads two(2);
  const int inputs = 100, outputs = 70, rows = 11;
  const Dense dense(inputs, outputs, noise(inputs * outputs, 1), noise(outputs, 2), GetParam());
  const std::vector<float> x = noise(inputs * rows, 3), before = noise(outputs * rows, 4);
  std::vector<float> y(outputs * rows), sum = before;
  dense.apply(two, x.data(), inputs, y.data(), outputs, rows);
  dense.add(two, x.data(), inputs, sum.data(), outputs, rows);
  for (int i = 0; i < outputs * rows; ++i) ASSERT_EQ(sum[i], before[i] + y[i]) << i;
}

TEST_P(DenseType, KeepsNanAndInfinityInTheirRow) {
  Threads one(1);
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const Dense dense(2, 1, std::vector{1.0f, 1.0f}, std::vector{0.0f}, GetParam());
  const float x[6] = {1, nan, 1, 1, infinity, 1};
  float y[3];
  for (const std::optional<Activation> f : {std::optional<Activation>(), std::optional(Activation::relu)}) {
    dense.apply(one, x, 2, y, 1, 3, f);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], 2);
    EXPECT_FALSE(std::isfinite(y[2]));
  }
}

TEST_P(DenseType, LeavesOutTheBias) {
  Threads threads(1);
  const float x = 3;
  float y = 0;
  Dense(1, 1, std::vector{2.0f}, {}, GetParam()).apply(threads, &x, 1, &y, 1, 1);
  EXPECT_EQ(y, 6.0f);
}

INSTANTIATE_TEST_SUITE_P(Types, DenseType,
                         testing::Values(WeightType::f32, WeightType::bf16, WeightType::int8, WeightType::int4),
                         [](const auto& named) { return weight_type_name(named.param); });

// Files of packed weights are named after packing(): whatever changes an image must change packing_revision.
TEST(DenseType, ImagesAreThoseOfTheRevision) {
  const auto digest = [](WeightType type) {
    const Dense made(45, 19, noise(45 * 19, 1), noise(19, 2), type);
    return sha256_hex(made.weights()->image()).substr(0, 8);
  };
  const std::string all = digest(WeightType::f32) + " " + digest(WeightType::bf16) + " " + digest(WeightType::int8) +
                          " " + digest(WeightType::int4);
  if (!packing().ends_with("-x86_64-fma")) GTEST_SKIP() << "known for machines with FMA";
  EXPECT_EQ(packing() + " " + all, "1-x86_64-fma 45e48280 35121fc2 c1bf9a60 cf37bf94");
}

TEST(DenseType, AnImageIsTheLayer) {
  // Evenly spaced numbers far from zero: blocks of int4 have offsets then.
  std::vector<float> apart(45 * 19);
  for (size_t i = 0; i < apart.size(); ++i) apart[i] = 3 + 0.5f * static_cast<float>(i % 16);
  const size_t without = Dense(45, 19, noise(45 * 19, 1), noise(19, 2), WeightType::int4).weights()->image().size();
  EXPECT_LT(without, Dense(45, 19, apart, noise(19, 2), WeightType::int4).weights()->image().size());
  for (const auto& [type, weight] : {std::pair(WeightType::f32, noise(45 * 19, 1)),
                                     {WeightType::bf16, noise(45 * 19, 1)},
                                     {WeightType::int8, noise(45 * 19, 1)},
                                     {WeightType::int4, noise(45 * 19, 1)},
                                     {WeightType::int4, apart}}) {
    const Dense made(45, 19, weight, noise(19, 2), type);
    const Dense again(45, 19, true, type, made.weights()->image(), made.weights());
    Threads threads(1);
    const std::vector<float> x = noise(45 * 5, 3);
    std::vector<float> y(19 * 5), z(19 * 5);
    made.apply(threads, x.data(), 45, y.data(), 19, 5);
    again.apply(threads, x.data(), 45, z.data(), 19, 5);
    EXPECT_EQ(y, z);
    EXPECT_EQ(made.parameters(), again.parameters());
    EXPECT_THROW(Dense(45, 33, true, type, made.weights()->image(), nullptr), Error) << "another size";
  }
}

TEST(DenseType, TakesLessMemory) {
  const std::vector<float> w = noise(512 * 2048, 1);
  EXPECT_LE(Dense(512, 2048, w, {}, WeightType::bf16).bytes() * 1.99, Dense(512, 2048, w, {}).bytes());
  EXPECT_LE(Dense(512, 2048, w, {}, WeightType::int8).bytes() * 3.9, Dense(512, 2048, w, {}).bytes());
  EXPECT_LE(Dense(512, 2048, w, {}, WeightType::int4).bytes() * 6.3, Dense(512, 2048, w, {}).bytes());
}

#if defined(__x86_64__)
__attribute__((target("amx-tile"))) std::array<uint8_t, 64> tile_shapes() {
  std::array<uint8_t, 64> shapes;
  _tile_storeconfig(shapes.data());
  asm volatile("" ::: "memory");
  return shapes;
}

TEST(DenseIntegers, LeaveNoTilesBehind) {
  if (!has(ByteKernel::amx)) GTEST_SKIP() << "no AMX";
  const std::vector<float> w = noise(64 * 64, 1), x = noise(64 * 64, 2);
  std::vector<float> y(64 * 64);
  Threads one(1);
  for (const auto make : {int8_weights, int4_weights}) {
    make({64, 64, w, {}}, ByteKernel::amx)->run(one, {x.data(), 64, y.data(), 64, 64}, {});
    EXPECT_EQ((tile_shapes()), (std::array<uint8_t, 64>{}));
  }
}
#endif

TEST(DenseIntegers, KeepRowsOfZerosAndAWeightThatIsNotANumber) {
  Threads one(1);
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const WeightType type : {WeightType::int8, WeightType::int4})
    for (const float bad : {nan, infinity, -infinity}) {
      const float x[2] = {0, 0}, ones[2] = {1, 1};
      float y[2];
      const Dense dense(2, 2, std::vector{0.0f, 0.0f, bad, 1.0f}, std::vector{5.0f, 6.0f}, type);
      dense.apply(one, x, 2, y, 2, 1);
      EXPECT_EQ(y[0], 5);
      dense.apply(one, ones, 2, y, 2, 1);
      EXPECT_EQ(y[0], 5);
      EXPECT_TRUE(std::isnan(y[1]));
    }
}

TEST(DenseInt4, RoundsWhatIsRoundedToItself) {
  const std::vector<float> w = noise(40 * 999, 5);
  const Dense once(999, 40, w, {}, WeightType::int4);
  std::vector<float> kept(w.size()), again(w.size());
  for (int o = 0; o < 40; ++o) once.row(o, kept.data() + o * 999);
  const Dense twice(999, 40, kept, {}, WeightType::int4);
  for (int o = 0; o < 40; ++o) twice.row(o, again.data() + o * 999);
  EXPECT_EQ(kept, again);
  EXPECT_NE(kept, w);
}

TEST(DenseInt4, HasNoScaleSoSmallThatItsInverseIsInfinite) {
  Threads one(1);
  const Dense dense(2, 1, std::vector{1e-40f, -1e-42f}, std::vector{1.0f}, WeightType::int4);
  const float x[2] = {1, 1};
  float y = 0;
  dense.apply(one, x, 2, &y, 1, 1);
  EXPECT_EQ(y, 1.0f);
}

TEST(DenseInt8, RefusesMoreInputsThanItsSumsHold) {
  EXPECT_THROW(Dense(32769, 1, std::vector<float>(32769), {}, WeightType::int8), Error);
}

TEST(Activations, FollowTheirFormulas) {
  Threads one(1);
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {0, 1, -0.5f, nan, infinity, -infinity, 100, -100, 1e-30f};
  for (int i = -13000; i <= 13000; ++i) x.push_back(static_cast<float>(i) / 1000);
  const Dense identity(1, 1, std::vector{1.0f}, {});
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> relu(x.size()), gelu(x.size());
  identity.apply(one, x.data(), 1, relu.data(), 1, n, Activation::relu);
  identity.apply(one, x.data(), 1, gelu.data(), 1, n, Activation::gelu);
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(relu[i]) && std::isnan(gelu[i]));
      continue;
    }
    EXPECT_EQ(relu[i], std::max(x[i], 0.0f));
    if (std::isinf(x[i])) {
      EXPECT_EQ(gelu[i], std::max(x[i], 0.0f));
      continue;
    }
    const double v = x[i], exact = 0.5 * v * std::erfc(-v * std::sqrt(0.5));
    // Below -2 the rounding of the exponent of e is a larger share of a smaller value.
    ASSERT_NEAR(gelu[i], exact, (v > -2 ? 6e-7 : 2e-5) * std::abs(exact) + 1e-37) << v;
  }
}

TEST(Activations, OfOtherLibrariesFollowTheirFormulas) {
  Threads one(1);
  std::vector<float> x;
  for (int i = -128000; i <= 128000; ++i) x.push_back(static_cast<float>(i) / 1000);
  const Dense identity(1, 1, std::vector{1.0f}, {});
  const int64_t n = static_cast<int64_t>(x.size());
  struct Function {
    Activation activation;
    std::function<double(double)> exponent;
    double above_zero, above_minus_2, below;  // errors as activation.hpp has them
  };
  const double root = std::sqrt(2 / M_PI);
  for (const Function& f :
       {Function{Activation::gelu_tanh, [&](double v) { return 2 * root * (v + 0.044715 * v * v * v); }, 1.5e-7, 5.3e-7,
                 1.6e-5},
        Function{Activation::quick_gelu, [](double v) { return 1.702 * v; }, 1.4e-7, 2.7e-7, 5.0e-6},
        Function{Activation::silu, [](double v) { return v; }, 1.2e-7, 1.5e-7, 1.8e-7}}) {
    std::vector<float> y(x.size());
    identity.apply(one, x.data(), 1, y.data(), 1, n, f.activation);
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = x[i], exact = v / (1 + std::exp(-f.exponent(v)));
      const double share = v > 0 ? f.above_zero : v > -2 ? f.above_minus_2 : f.below;
      const double limit = std::abs(exact) > 1e-35 ? share * std::abs(exact) : 1e-34;
      ASSERT_LE(std::abs(y[i] - exact), limit) << v << ", activation " << static_cast<int>(f.activation);
    }
  }
}

TEST(Pieces, OfAFewRowsAreCutByOutputsAndOfManyByRows) {
  using dense::pieces_of;
  const auto of = [](int64_t rows, int64_t inputs, int64_t outputs, uint32_t workers) {
    return pieces_of(rows, outputs / 16, static_cast<double>(inputs), workers);
  };
  EXPECT_EQ(of(1, 512, 32000, 1).count(), 1);
  EXPECT_EQ(of(1, 64, 64, 2).count(), 1) << "too little for two";
  for (const int64_t rows : {1, 2, 9, 16, 64}) {
    EXPECT_EQ(of(rows, 512, 2048, 2).row_pieces, 1) << rows;
    EXPECT_EQ(of(rows, 512, 2048, 2).panel_pieces, 8) << rows;
  }
  EXPECT_EQ(of(2048, 512, 512, 2).row_pieces, 8);
  EXPECT_EQ(of(2048, 512, 512, 2).panel_pieces, 1);
  EXPECT_EQ(of(128, 512, 512, 2).count(), 8) << "two blocks of rows, cut four times";
}

TEST(Pieces, CoverEverythingOnceAndGrowInNumberWithTheThreads) {
  for (const int64_t rows : {1, 5, 63, 64, 65, 700})
    for (const int64_t panels : {1, 2, 3, 31, 2000})
      for (const double cost : {1.0, 64.0, 2048.0}) {
        int64_t before = 0;
        for (const uint32_t workers : {1u, 2u, 3u, 16u}) {
          const dense::Pieces cut = dense::pieces_of(rows, panels, cost, workers);
          EXPECT_GE(cut.rows * cut.row_pieces, rows);
          EXPECT_LT(cut.rows * (cut.row_pieces - 1), rows);
          EXPECT_GE(cut.panels * cut.panel_pieces, panels);
          EXPECT_LT(cut.panels * (cut.panel_pieces - 1), panels);
          EXPECT_GE(cut.count(), before) << rows << " rows, " << panels << " panels, " << workers << " threads";
          before = cut.count();
        }
      }
}

}  // namespace
}  // namespace attnkit::core
