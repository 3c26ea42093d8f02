// The parts of every gate of the tests fail on NaN.
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

// A mechanism that writes its output, and then one number so many elements behind the last one.
int64_t beyond = 0;

int32_t make_overrun(const attn_block* block, const attn_value*, attn_mech** mech, const attn_port* const** ports,
                     uint32_t* n, attn_error*) {
  static attn_port v, o;
  static const attn_port* const both[] = {&v, &o};
  v = {sizeof(attn_port), ATTN_KEY, 0, 0, 0, 4, "v", "", {0, block->heads, 0, block->head_width}};
  o = {sizeof(attn_port), ATTN_OUTPUT, 0, 0, 0, 4, "o", "", {0, block->heads, 0, block->head_width}};
  *mech = reinterpret_cast<attn_mech*>(&v);
  *ports = both;
  *n = 2;
  return ATTN_OK;
}

int32_t run_overrun(const attn_plan*, const attn_run* run, attn_error*) {
  const attn_tensor& o = run->ports[1];
  float* last = nullptr;
  for (int64_t b = 0; b < o.shape[0]; ++b)
    for (int64_t h = 0; h < o.shape[1]; ++h)
      for (int64_t i = 0; i < o.shape[2]; ++i)
        for (int64_t c = 0; c < o.shape[3]; ++c)
          *(last = static_cast<float*>(o.data) + b * o.stride[0] + h * o.stride[1] + i * o.stride[2] + c) = 1;
  last[beyond] = 1;
  return ATTN_OK;
}

TEST(Gate, ANumberWrittenPastAnOutputIsSeen) {
  attn_plugin plugin{};
  plugin.create = make_overrun;
  plugin.destroy = [](attn_mech*) {};
  plugin.plan = [](const attn_mech* mech, const attn_request*, attn_info*, attn_plan** plan, attn_error*) -> int32_t {
    *plan = reinterpret_cast<attn_plan*>(const_cast<attn_mech*>(mech));
    return ATTN_OK;
  };
  plugin.plan_free = [](attn_plan*) {};
  plugin.run = run_overrun;
  const Mechanism mech(plugin, make_block(ATTN_ENCODER_SELF, false, 2, 8, 4));
  Inputs in(mech, 2, 3, 3, 1);
  for (beyond = 0; beyond < 16; ++beyond) {
    if (beyond == 0)
      EXPECT_NO_THROW(run_whole(in, 0, {}));
    else
      EXPECT_THROW(run_whole(in, 0, {}), conformance::Violation) << beyond;
  }
}

}  // namespace
}  // namespace attnkit::test
