// What every gate of the tests is made of must fail on NaN.
#include <gtest/gtest.h>

#include <limits>

#include "support/golden.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool passes(double error) { return error <= kGate; }

TEST(Gate, NanIsWorseThanAnyErrorInEitherPlace) {
  EXPECT_EQ(2, worse(1, 2));
  EXPECT_EQ(2, worse(2, 1));
  for (const double other : {0.0, 1e-7, 1e300}) {
    EXPECT_FALSE(passes(worse(other, kNan))) << other;
    EXPECT_FALSE(passes(worse(kNan, other))) << other;
    EXPECT_FALSE(passes(worse(worse(0, kNan), other))) << other;
  }
}

TEST(Gate, ARatioWithANanIsNan) {
  Ratio right, wrong, empty;
  right.add(1, 1);
  wrong.add(kNan, 1);
  wrong.add(1, 1);
  EXPECT_EQ(0, right());
  EXPECT_TRUE(std::isnan(wrong()));
  EXPECT_EQ(0, empty());
  empty.add(1, 0);
  EXPECT_FALSE(passes(empty())) << "something where nothing is wanted";
}

TEST(Gate, ErrorsOfArraysAndMatricesKeepNan) {
  Array one(1, 1, 2, 1), two(1, 1, 2, 1);
  for (Array* a : {&one, &two}) a->set([](int64_t, int64_t, int64_t i, int64_t) { return static_cast<float>(i + 1); });
  const Truth truth{{1, 1, 2, 2, 1}, {1, 2}, {1, 2}};
  EXPECT_EQ(0, rms_ratio(one, two));
  EXPECT_EQ(0, error_of(one, truth));
  EXPECT_EQ(0, largest_difference({{1, 2}}, {{1, 2}}));
  one.at(0, 0, 1, 0) = static_cast<float>(kNan);
  EXPECT_FALSE(passes(rms_ratio(one, two)));
  EXPECT_FALSE(passes(error_of(one, truth)));
  EXPECT_FALSE(passes(error_of(one, truth, true)));
  for (const Matrix& a : {Matrix{{kNan, 2}}, Matrix{{1, kNan}}}) {
    EXPECT_FALSE(passes(largest_difference(a, {{1, 2}})));
    EXPECT_FALSE(passes(largest_difference({{1, 2}}, a)));
  }
}

TEST(Gate, TheWorstSituationIsTheOneWithNan) {
  const auto nan_in = [](size_t which) {
    size_t turn = 0;
    return worst_situation(nullptr, [&](const Situation&) { return turn++ == which ? kNan : 1e-7; });
  };
  for (size_t which = 0; which < situations().size(); ++which) EXPECT_FALSE(passes(nan_in(which))) << which;
  EXPECT_TRUE(passes(nan_in(situations().size())));
}

}  // namespace
}  // namespace attnkit::test
