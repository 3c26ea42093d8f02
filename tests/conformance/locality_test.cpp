// Laws of who may influence whom: not the future, not padding, not other rows, not other heads.
#include <limits>
#include <numeric>

#include "conformance/fixture.hpp"

namespace attnkit::test {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool is_aux(const attn_port& port) { return port.kind == ATTN_AUX_IN; }

// Overwrites rows of the sequences for which `which(port, b, h, i)` holds, with random numbers or NaN.
template <class Which>
void overwrite(Inputs& in, bool nan, Which which) {
  Random random(99);
  for (size_t p = 0; p < in.arrays.size(); ++p) {
    const attn_port& port = *in.mech->ports()[p];
    if (!is_taken(port)) continue;
    Array& a = in.arrays[p];
    const Array old = a;
    a.set([&](int64_t b, int64_t h, int64_t i, int64_t c) {
      const float other = nan ? kNan : random.normal();
      return which(port, b, h, i) ? other : old.at(b, h, i, c);
    });
  }
}

}  // namespace

class Locality : public Law {};
INSTANTIATE_TEST_SUITE_P(Conformance, Locality, testing::ValuesIn(subjects()), name_of);

class LocalityCausal : public Law {};
INSTANTIATE_TEST_SUITE_P(Conformance, LocalityCausal, testing::ValuesIn(subjects({Seat::kDecoder})), name_of);
class LocalityCross : public Law {};
INSTANTIATE_TEST_SUITE_P(Conformance, LocalityCross, testing::ValuesIn(subjects({Seat::kCross})), name_of);

TEST_P(LocalityCausal, TheFutureDoesNotReachThePast) {
  Inputs in = inputs(2, 100);
  Array out;
  ATTNKIT_OR_SKIP(out = whole(in));
  for (const int64_t cut : {1, 15, 16, 17, 50, 99})
    for (const bool nan : {false, true}) {
      Inputs changed = in;
      overwrite(changed, nan,
                [cut](const attn_port& port, int64_t, int64_t, int64_t i) { return !is_aux(port) && i >= cut; });
      const Array got = whole(changed);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < out.heads; ++h)
          EXPECT_TRUE(same_bits(out, b, h, got, b, h, cut)) << "cut " << cut << (nan ? " NaN" : " random");
    }
}

TEST_P(Locality, PaddingDoesNotMatter) {
  const int64_t n = 40, m = keys_for(n);
  Call call;
  call.q_len = {40, 17, 0, 1};
  call.k_len = cross() ? std::vector<int32_t>{static_cast<int32_t>(m), 33, 5, 0} : call.q_len;
  if (causal()) call.q_total = call.k_total = {40, 17, 1, 1};
  Inputs zero = inputs(4, n), nan = zero, one = inputs(1, n);
  const auto pad = [&](const attn_port& port, int64_t b, int64_t, int64_t i) {
    return !is_aux(port) && i >= (port.kind == ATTN_KEY ? call.k_len : call.q_len)[static_cast<size_t>(b)];
  };
  overwrite(zero, false, pad);
  overwrite(nan, true, pad);
  Array out;
  ATTNKIT_OR_SKIP(out = whole(zero, call));
  EXPECT_TRUE(same_bits(out, whole(nan, call)));
  EXPECT_TRUE(all_finite(out));
  for (size_t b = 0; b < 4; ++b) {
    // Past its length a row is zero, and before it equals a run that never saw the padding.
    for (int64_t i = call.q_len[b]; i < n; ++i) EXPECT_EQ(out.at(static_cast<int64_t>(b), out.heads - 1, i, 3), 0.0f);
    Inputs alone(*mech, 1, call.q_len[b], call.k_len[b], 1);
    for (size_t p = 0; p < alone.arrays.size(); ++p)
      if (is_taken(*mech->ports()[p]))
        alone.arrays[p].set([&](int64_t, int64_t h, int64_t i, int64_t c) {
          return zero.arrays[p].at(static_cast<int64_t>(b), h, i, c);
        });
    Call single;
    if (causal()) single.q_total = single.k_total = {call.q_total[b]};
    const Array got = run_whole(alone, 0, single);
    for (int64_t h = 0; h < out.heads; ++h)
      EXPECT_TRUE(same_bits(got, 0, h, out, static_cast<int64_t>(b), h, call.q_len[b])) << "row " << b;
  }
}

TEST_P(Locality, BatchRowsAreIndependent) {
  Inputs in = inputs(4, 33);
  Array out;
  ATTNKIT_OR_SKIP(out = whole(in));
  const int64_t order[] = {2, 0, 3, 1};
  Inputs permuted = in;
  for (size_t p = 0; p < in.arrays.size(); ++p)
    if (is_taken(*mech->ports()[p]))
      permuted.arrays[p].set(
          [&](int64_t b, int64_t h, int64_t i, int64_t c) { return in.arrays[p].at(order[b], h, i, c); });
  const Array got = whole(permuted);
  for (int64_t b = 0; b < 4; ++b)
    for (int64_t h = 0; h < out.heads; ++h) EXPECT_TRUE(same_bits(got, b, h, out, order[b], h, 33));
}

TEST_P(Locality, HeadsAndRowsKeepTheirNanToThemselves) {
  Inputs in = inputs(3, 33);
  Array out;
  ATTNKIT_OR_SKIP(out = whole(in));
  // Raw inputs and auxiliary sequences have no heads: what enters there may reach every head of its row.
  const auto& ports = mech->ports();
  const bool mixes =
      std::any_of(ports.begin(), ports.end(), [](const attn_port* p) { return is_taken(*p) && p->shape[1] != kHeads; });
  for (const bool nan : {false, true}) {
    Inputs changed = in;
    overwrite(changed, nan,
              [mixes](const attn_port&, int64_t b, int64_t h, int64_t) { return b == 1 && (mixes || h == 0); });
    const Array got = whole(changed);
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t h = 0; h < out.heads; ++h)
        if (b != 1 || (h != 0 && !mixes)) {
          EXPECT_TRUE(same_bits(got, b, h, out, b, h, 33)) << "row " << b << " head " << h;
        }
  }
}

TEST_P(LocalityCross, QueriesOnlyReadWhatIsVisible) {
  const int64_t n = 20, m = keys_for(n);
  Call call;
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < n; ++i)
      call.visible.push_back(std::min<int32_t>(static_cast<int32_t>(m) - 3, (i / 4) * (3 + b)));
  Inputs in = inputs(2, n), changed = in;
  overwrite(changed, true,
            [&](const attn_port& port, int64_t, int64_t, int64_t i) { return port.kind == ATTN_KEY && i >= m - 3; });
  Array out;
  ATTNKIT_OR_SKIP(out = whole(in, call, 1, ATTN_PREFIX));
  EXPECT_TRUE(all_finite(out));
  EXPECT_TRUE(same_bits(out, whole(changed, call, 1, ATTN_PREFIX)));
  EXPECT_EQ(out.at(0, 0, 0, 0), 0.0f) << "a query that sees nothing gives zero";
}

}  // namespace attnkit::test
