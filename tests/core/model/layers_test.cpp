#include "core/model/layers.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace attnkit::core {
namespace {

TEST(LayerNorm, HasZeroMeanAndUnitVariance) {
  const LayerNorm norm{{1, 1, 2, 1}, {0, 0, 0, 5}};
  const float x[4] = {1, 2, 3, 6};
  float y[4];
  norm.apply(x, y, 1);
  const double inverse = 1 / std::sqrt(3.5 + 1e-5);
  EXPECT_NEAR(y[0], -2 * inverse, 1e-6);
  EXPECT_NEAR(y[1], -1 * inverse, 1e-6);
  EXPECT_NEAR(y[2], 0, 1e-6);
  EXPECT_NEAR(y[3], 3 * inverse + 5, 1e-6);
}

TEST(NormaliseHeads, GivesUnitRootMeanSquareAndKeepsZeroRows) {
  float o[4] = {3, 4, 0, 0};
  normalise_heads(o, 1, 2, 2);
  EXPECT_NEAR(o[0], 3 / std::sqrt(12.5 + 1e-5), 1e-6);
  EXPECT_NEAR(o[1], 4 / std::sqrt(12.5 + 1e-5), 1e-6);
  EXPECT_EQ(o[2], 0);
  EXPECT_EQ(o[3], 0);
}

TEST(LayerNorm, TakesItsEpsilon) {
  const LayerNorm norm{{1, 1}, {0, 0}, 0.75};
  const float x[2] = {-0.5, 0.5};
  float y[2];
  norm.apply(x, y, 1);
  EXPECT_NEAR(y[1], 0.5, 1e-7);
}

TEST(Embedding, ScalesAndAddsSinusoidalPositions) {
  Embedding e{4, 2.0f, false, Numbers({0, 0, 0, 0, 1, 2, 3, 4}), {}, sinusoidal_positions(3, 4)};
  float x[8];
  const int32_t ids[2] = {1, 0}, length = 1;
  e.apply({ids, 2, 1, 2, &length}, {2}, x);
  for (int c = 4; c < 8; ++c) EXPECT_EQ(x[c], 0) << "behind the ids of the row";
  EXPECT_NEAR(x[0], 2 + std::sin(2.0), 1e-6);
  EXPECT_NEAR(x[1], 4 + std::cos(2.0), 1e-6);
  EXPECT_NEAR(x[2], 6 + std::sin(0.02), 1e-6);
  EXPECT_NEAR(x[3], 8 + std::cos(0.02), 1e-6);
}

// Pair i of a row at 3: channels 2 i and 2 i + 1, or sines before cosines, the last pair by 1 / 10000 or less far.
TEST(Embedding, HasItsSinusoidsInThreeLayouts) {
  const auto pair = [](Sinusoids layout, int64_t sine, int64_t cosine, double slowness) {
    const std::vector<float> rows = sinusoidal_positions(2, 8, layout, 2);
    EXPECT_NEAR(rows[8 + sine], std::sin(3 / slowness), 1e-6);
    EXPECT_NEAR(rows[8 + cosine], std::cos(3 / slowness), 1e-6);
  };
  for (int64_t i = 0; i < 4; ++i) {
    const auto part = static_cast<double>(i);
    pair(Sinusoids::interleaved, 2 * i, 2 * i + 1, std::pow(10000, part / 4));
    pair(Sinusoids::halves, i, 4 + i, std::pow(10000, part / 4));
    pair(Sinusoids::tensor2tensor, i, 4 + i, std::pow(10000, part / 3));
  }
}

TEST(Embedding, MayBeginWithZeros) {
  Embedding e{2, 1.0f, true, Numbers({1, 2, 3, 4}), {}, {5, 5, 6, 6}};
  float x[4];
  const int32_t ids[2] = {1, 1};
  e.apply({ids, 2, 1, 2, nullptr}, {}, x);
  EXPECT_EQ((std::vector<float>{x[0], x[1], x[2], x[3]}), (std::vector<float>{5, 5, 9, 10}));
  e.apply({ids, 1, 1, 1, nullptr}, {1}, x);
  EXPECT_EQ((std::vector<float>{x[0], x[1]}), (std::vector<float>{9, 10}));
}

TEST(Embedding, GivesTheSameRowsFromAnOutputLayer) {
  const std::vector<float> table = {0, 0, 0, 0, 1, 2, 3, 4};
  Embedding own{4, 1.0f, false, Numbers(table)}, shared{4, 1.0f, false, Numbers(), Dense(4, 2, table, {})};
  EXPECT_EQ(own.vocabulary(), 2);
  EXPECT_EQ(shared.vocabulary(), 2);
  float x[4], y[4];
  own.row(1, x);
  shared.row(1, y);
  for (int c = 0; c < 4; ++c) EXPECT_EQ(x[c], y[c]);
}

}  // namespace
}  // namespace attnkit::core
