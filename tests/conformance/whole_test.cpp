// Laws of whole-sequence runs: every element written, repeatable, and independent of layout, workers and company.
#include <cmath>
#include <limits>
#include <thread>

#include "conformance/fixture.hpp"

namespace attnkit::test {

class Whole : public Law {};
INSTANTIATE_TEST_SUITE_P(Conformance, Whole, testing::ValuesIn(subjects()), name_of);

TEST_P(Whole, WritesEveryElementAndIsFinite) {
  for (const int64_t batch : {0, 1, 2})
    for (const int64_t n : {0, 1, 63, 64, 100}) {
      Inputs in = inputs(batch, n);
      Array out;
      ATTNKIT_OR_SKIP(out = whole(in));
      EXPECT_TRUE(all_finite(out)) << "B " << batch << " N " << n;
    }
}

TEST_P(Whole, RepeatsBitForBit) {
  Inputs in = inputs(2, 64);
  Array first;
  ATTNKIT_OR_SKIP(first = whole(in));
  for (int repeat = 0; repeat < 20; ++repeat) EXPECT_TRUE(same_bits(first, whole(in)));
}

TEST_P(Whole, DoesNotDependOnWorkers) {
  // More heads than workers, and fewer.
  for (const auto& [batch, n] : std::vector<std::pair<int64_t, int64_t>>{{5, 100}, {1, 300}}) {
    Inputs in = inputs(batch, n);
    Array one;
    ATTNKIT_OR_SKIP(one = whole(in));
    for (const uint32_t workers : {2u, 5u, 8u}) EXPECT_TRUE(same_bits(one, whole(in, {}, workers))) << workers;
  }
}

TEST_P(Whole, DoesNotDependOnLayout) {
  Inputs strided = inputs(2, 63), plain = inputs(2, 63, 1, Layout::kPlain);
  Array out;
  ATTNKIT_OR_SKIP(out = whole(strided));
  EXPECT_TRUE(same_bits(out, whole(plain)));
}

TEST_P(Whole, PowersOfTwoInValuesScaleExactly) {
  if (mech->find("v") < 0) GTEST_SKIP() << "no port named v";
  Inputs in = inputs(2, 64);
  Array out;
  ATTNKIT_OR_SKIP(out = whole(in));
  for (float& x : in["v"].data()) x *= 256;
  for (float& x : out.data()) x *= 256;
  EXPECT_TRUE(same_bits(out, whole(in)));
}

// Row 40 of the last head of the first sequence becomes NaN.
void spoil(Array& sequence) {
  for (int64_t c = 0; c < sequence.width; ++c)
    sequence.at(0, sequence.heads - 1, 40, c) = std::numeric_limits<float>::quiet_NaN();
}

TEST_P(Whole, NanInAQueryReachesItsRow) {
  Inputs in = inputs(1, 64);
  bool queries = false;
  for (size_t i = 0; i < in.arrays.size(); ++i) {
    if (mech->ports()[i]->kind != ATTN_QUERY) continue;
    spoil(in.arrays[i]);
    queries = true;
  }
  if (!queries) GTEST_SKIP() << "this mechanism reads no queries";
  Array out;
  ATTNKIT_OR_SKIP(out = whole(in));
  EXPECT_TRUE(std::isnan(out.at(0, out.heads - 1, 40, 0)));
  // Where queries are keys as well, or make landmarks, another row may take part in it.
  if (causal() || cross()) {
    EXPECT_FALSE(std::isnan(out.at(0, out.heads - 1, 39, 0)));
  }
}

TEST_P(Whole, NanInAKeyIsNotSwallowed) {
  Inputs in = inputs(1, 64);
  for (size_t i = 0; i < in.arrays.size(); ++i)
    if (mech->ports()[i]->kind == ATTN_KEY) spoil(in.arrays[i]);
  Array out;
  ATTNKIT_OR_SKIP(out = whole(in));
  EXPECT_TRUE(std::isnan(out.at(0, out.heads - 1, 63, 0)));
}

TEST_P(Whole, RunsAtOnceOnOnePlan) {
  std::vector<Inputs> in;
  for (uint64_t seed = 0; seed < 4; ++seed) in.push_back(inputs(2, 64, seed + 1));
  std::vector<Array> alone, together(in.size());
  Call call = causal() ? with_totals({}, 2, 64) : Call{};
  call.queries = 64;
  call.keys = keys_for(64);
  const uint32_t flags = causal() ? ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL : 0;
  ATTNKIT_OR_SKIP(Planned(*mech, make_request(2, 64, call.keys, flags)));
  const Planned plan(*mech, make_request(2, 64, call.keys, flags));
  for (auto& one : in) alone.push_back(plan.run(one, call));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < in.size(); ++t)
    threads.emplace_back([&, t] {
      for (int repeat = 0; repeat < 10; ++repeat) together[t] = plan.run(in[t], call);
    });
  for (auto& thread : threads) thread.join();
  for (size_t t = 0; t < in.size(); ++t) EXPECT_TRUE(same_bits(alone[t], together[t]));
}

class WholeCross : public Law {};
INSTANTIATE_TEST_SUITE_P(Conformance, WholeCross, testing::ValuesIn(subjects({Seat::kCross})), name_of);

TEST_P(WholeCross, NoKeysGiveZeroRows) {
  Inputs in(*mech, 2, 7, 0, 1);
  Array out;
  ATTNKIT_OR_SKIP(out = whole(in));
  Array zero(2, out.heads, 7, out.width);
  zero.set([](int64_t, int64_t, int64_t, int64_t) { return 0.0f; });
  EXPECT_TRUE(same_bits(out, zero));
}

}  // namespace attnkit::test
