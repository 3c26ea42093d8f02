#include "core/base/half.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace attnkit::core {
namespace {

TEST(Half, EveryOneComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = from_half(half);
    if (wide != wide)
      EXPECT_TRUE(std::isnan(from_half(round_to_half(wide)))) << bits;
    else
      ASSERT_EQ(round_to_half(wide), half);
  }
}

// Between two neighbours the middle goes to the even one, and what is beside it to the nearer.
TEST(Half, RoundsToTheNearest) {
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const auto next = static_cast<uint16_t>(half + 1);
    const float middle = (from_half(half) + from_half(next)) / 2;
    ASSERT_EQ(round_to_half(middle), half % 2 == 0 ? half : next);
    ASSERT_EQ(round_to_half(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(round_to_half(-std::nextafter(middle, 1e9f)), next | 0x8000);
  }
}

TEST(Half, EndsAtInfinity) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(from_half(round_to_half(65519.0f)), 65504.0f);
  EXPECT_EQ(from_half(round_to_half(65520.0f)), infinity);
  EXPECT_EQ(from_half(round_to_half(-1e30f)), -infinity);
  EXPECT_EQ(from_half(0x3555), 0.333251953125f);
}

}  // namespace
}  // namespace attnkit::core
