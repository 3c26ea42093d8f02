// rope_linear against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include "reference.hpp"
#include "support/cost.hpp"
#include "support/golden.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"
#include "support/stream.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

// All rows of an input after their map.
std::vector<Row> mapped(const Array& a, const Form& form, bool query) {
  std::vector<Row> rows;
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t i = 0; i < a.rows; ++i) rows.push_back(form.map(row_of(a, b, h, i), query));
  return rows;
}

// The oracle divides by a function of the turned weights' sum, and this mechanism by the plain one's: so the weights
// that it gets are divided already.
WeightOf weights(const Form& form, const Denominator& guard) {
  return [form, guard](const Mechanism&, Inputs& in, const Scene& s, const Call&) -> Weight {
    const auto q = mapped(in["q"], form, true), k = mapped(in["k"], form, false);
    Row den;
    for (size_t row = 0; row < q.size(); ++row) {
      const auto i = static_cast<int64_t>(row) % s.queries, item = static_cast<int64_t>(row) / s.queries;
      double sum = 0;
      for (int64_t j = 0; j < s.keys; ++j)
        if (s.sees(item / s.heads, i, j)) sum += dot(q[row], k[static_cast<size_t>(item * s.keys + j)]);
      den.push_back(guard(sum));
    }
    return [q, k, den, form, s](int64_t b, int64_t h, int64_t i, int64_t j) {
      const auto row = static_cast<size_t>((b * s.heads + h) * s.queries + i);
      return form.turned(q[row], k[static_cast<size_t>((b * s.heads + h) * s.keys + j)], i - j) / den[row];
    };
  };
}

double check(const Form& form, Settings settings, const std::string& kind = "none", double eps = 0) {
  settings["cross"] = true;
  return check_situations(plugin(), settings, weights(form, guard(kind, eps)), undivided);
}

TEST(RopeLinear, EqualsItsFloat64Form) { record_error(check({}, {})); }

TEST(RopeLinear, ItsGradientEqualsCentralDifferences) {
  record_error(check_gradients(plugin()));
  check_gradients(plugin(), {{"cross", true}, {"scale", "none"}, {"rotated", int64_t{6}}});
}

TEST(RopeLinear, HasOptions) {
  check({.scaled = false}, {{"scale", "none"}});
  check({.rotated = 4}, {{"rotated", int64_t{4}}});
  check({.base = 100}, {{"base", 100.0}});
  check({}, {{"guard", "add"}, {"eps", 3.0}}, "add", 3);
  check({}, {{"guard", "clamp"}, {"eps", 500.0}}, "clamp", 500);
}

TEST(RopeLinear, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("rope_linear")) {
    const int64_t rotated = g.params["rot_dim"];
    const Form form{.rotated = rotated, .base = g.params["base"]};
    const auto weight = [&](bool rounds) -> RowWeight {
      Matrix keys;
      for (const Row& k : rounds ? rounded(g.k) : g.k) keys.push_back(form.map(k, false));
      return [keys, form, causal = g.causal](const Row& q, const Row& k, int64_t i, int64_t j) {
        const Row a = form.map(q, true);
        double sum = 0;
        for (size_t t = 0; t < keys.size(); ++t)
          if (!causal || static_cast<int64_t>(t) <= i) sum += dot(a, keys[t]);
        return form.turned(a, form.map(k, false), i - j) / sum;
      };
    };
    worst = std::max(worst, check_golden(plugin(), g, {{"rotated", rotated}, {"base", form.base}, {"cross", true}},
                                         weight(false), weight(true), undivided, {}));
  }
  record_error(worst);
}

// The same rows at positions that the host says are late: distances alone count, and angles keep their digits.
TEST(RopeLinear, TakesPositionsFromTheHost) {
  const int64_t n = 30;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 24, 24));
  Inputs in(mech, 1, n, n, 1);
  for (const int32_t start : {0, 1, 1000, 1000000}) {
    const Planned plan(mech, make_request(1, n, n, ATTN_STREAM, 2000000));
    const Arena arena(plan.info().state_bytes, 1);
    Call call;
    call.arena = &arena;
    call.queries = call.keys = n;
    call.q_pos = call.k_pos = {start};
    const Array late = plan.run(in, call), first = run_whole(in, 0, {});
    EXPECT_LE(rms_ratio(late, first), 1e-6) << "from " << start;
    EXPECT_EQ(start == 0, same_bits(late, first)) << "from " << start;
  }
}

TEST(RopeLinear, StreamsCrossAttentionIfAsked) {
  const int64_t n = 12, m = 40;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 40), {{"cross", true}});
  Inputs in(mech, 1, n, m, 1);
  EXPECT_TRUE(same_bits(run_whole(in, 0, {}), streamed(in, {.keys = {17, 23}, .queries = chunks_of(n, 1)})));
}

TEST(RopeLinear, WeightsMayBeNegativeThoughDenominatorsAreNot) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, 1, 8, 8), {{"rotated", int64_t{8}}});
  Inputs in(mech, 1, 200, 200, 1);
  for (float& x : in["v"].data()) x = 1;
  const Array out = run_whole(in, 0, {});
  EXPECT_NEAR(out.at(0, 0, 0, 0), 1, 1e-6) << "no distance, no turn";
  EXPECT_LT(out.at(0, 0, 199, 0), 0.9) << "weights do not sum to 1";
  EXPECT_TRUE(all_finite(out));
}

TEST(RopeLinear, RefusesCrossAttentionUnlessAsked) {
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 2, 24, 24);
  const Mechanism mech(plugin(), block), asked(plugin(), block, {{"cross", true}});
  for (const uint32_t flags : {0u, ATTN_STREAM, ATTN_PREFIX}) {
    EXPECT_NO_THROW(Planned(asked, make_request(1, 4, 4, flags)));
    expect_refused(mech, make_request(1, 4, 4, flags), "cross = true");
  }
}

TEST(RopeLinear, RefusesFeaturesThatDoNotPair) {
  const auto block = [](int32_t width) { return make_block(ATTN_DECODER_SELF, true, 2, width, 8); };
  expect_refused(plugin(), block(10), {}, "rotated", "rotated");  // half of 10 is odd
  expect_refused(plugin(), block(10), {{"rotated", int64_t{12}}}, "rotated", "rotated");
  expect_refused(plugin(), block(16), {{"rotated", int64_t{7}}}, "rotated", "rotated");
  EXPECT_NO_THROW(Mechanism(plugin(), block(10), {{"rotated", int64_t{10}}}));
  EXPECT_NO_THROW(Mechanism(plugin(), block(16)));
}

TEST(RopeLinear, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, d = 24, e = 40, n = 9;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_SELF, true, heads, d, e));
  Inputs in(mech, 1, n, n, 1);
  const uint64_t state = static_cast<uint64_t>(heads * (d * e + d)) * sizeof(float);
  expect_cost(mech, make_request(1, n, n, ATTN_STREAM, 4095),
              {linear_flops(heads, n + n, d, e), bytes_of(in, {"q", "k", "v"}), bytes_of(in, {"o"}), state});
}

TEST(RopeLinear, SharesHeadsOfKeys) { check_shared_keys(plugin()); }

}  // namespace
}  // namespace attnkit::test
