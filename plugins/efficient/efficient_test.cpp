// efficient against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "support/golden.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

using Row = std::vector<double>;

// log of the sum of e^x over these numbers.
double log_sum(const Row& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double y : x) sum += std::exp(y - largest);
  return largest + std::log(sum);
}

// sum_f softmax_f(q)_f softmax_j(K_.f)_j, from the logs of the sums of each feature over the visible keys.
double weight_of(const Row& q, const Row& k, const Row& logs) {
  const double own = log_sum(q);
  double weight = 0;
  for (size_t f = 0; f < q.size(); ++f) weight += std::exp((q[f] - own) + (k[f] - logs[f]));
  return weight;
}

Row logs_of(const Matrix& keys) {
  Row logs;
  for (size_t f = 0; f < keys[0].size(); ++f) {
    Row column;
    for (const Row& k : keys) column.push_back(k[f]);
    logs.push_back(log_sum(column));
  }
  return logs;
}

Row row_of(const Array& a, int64_t b, int64_t h, int64_t i) {
  Row row;
  for (int64_t f = 0; f < a.width; ++f) row.push_back(a.at(b, h, i, f));
  return row;
}

Weight weights(Inputs& in, const Scene& scene) {
  const Array &q = in["q"], &k = in["k"];
  const auto known = std::make_shared<std::map<std::vector<int64_t>, Row>>();  // logs by row, head and keys seen
  return [&q, &k, scene, known](int64_t b, int64_t h, int64_t i, int64_t j) {
    int64_t count = 0;
    for (int64_t t = 0; t < scene.keys; ++t) count += scene.sees(b, i, t);
    Row& logs = (*known)[{b, h, count}];
    if (logs.empty()) {
      Matrix seen;
      for (int64_t t = 0; t < count; ++t) seen.push_back(row_of(k, b, h, t));
      logs = logs_of(seen);
    }
    return weight_of(row_of(q, b, h, i), row_of(k, b, h, j), logs);
  };
}

const Denominator one = [](double) { return 1.0; };  // the weights sum to 1 already

// Every situation of the suite that is not causal; returns the largest error.
double check(float factor) {
  double worst = 0;
  for (const Situation& s : situations()) {
    if (s.block.causal) continue;
    const Mechanism mech(plugin(), s.block);
    Inputs in(mech, s.batch, s.queries, s.keys, 3);
    for (const char* name : {"q", "k"})
      for (float& x : in[name].data()) x *= factor;
    Call call;
    call.q_len = s.q_len;
    call.k_len = s.k_len;
    for (int64_t i = 0; i < s.batch * s.queries && s.prefix; ++i)
      call.visible.push_back(static_cast<int32_t>((i % s.queries) / 4 * 9));
    const Scene scene{s.batch, s.block.heads, s.queries, s.keys,      s.block.head_width,
                      false,   s.q_len,       s.k_len,   call.visible};
    const Array got = run_whole(in, s.prefix ? ATTN_PREFIX : 0, call);
    const Array& v = in["v"];
    const Truth truth = oracle(
        scene, weights(in, scene),
        [&v](int64_t b, int64_t h, int64_t j, int64_t c) { return double{v.at(b, h, j, c)}; }, one);
    const double error = error_of(got, truth);
    EXPECT_LE(error, kGate) << s.name << " times " << factor;
    worst = std::max(worst, error);
  }
  return worst;
}

TEST(Efficient, EqualsItsFloat64Form) { RecordProperty("error", std::to_string(1e9 * check(1)) + "e-9"); }

TEST(Efficient, EqualsItsFloat64FormWhereExponentialsWouldOverflow) {
  RecordProperty("error", std::to_string(1e9 * check(50)) + "e-9");
}

// Latte's bidirectional form is this one, with latents for features.
TEST(Efficient, EqualsTheGoldenCases) {
  double worst = 0;
  for (const Golden& g : golden("efficient")) {
    const auto weight = [&g](bool rounded) -> RowWeight {
      Matrix keys = g.k;
      for (Row& row : keys)
        for (double& x : row) x = rounded ? static_cast<float>(x) : x;
      return [logs = logs_of(keys)](const Row& q, const Row& k, int64_t, int64_t) { return weight_of(q, k, logs); };
    };
    worst = std::max(worst, check_golden(plugin(), g, {}, weight(false), weight(true), one, {}));
  }
  RecordProperty("error", std::to_string(1e9 * worst) + "e-9");
}

Array streamed(Inputs& in, const std::vector<int32_t>& chunks, int64_t n, int64_t m) {
  const Planned plan(*in.mech, make_request(1, n, m, ATTN_STREAM, m));
  const Arena arena(plan.info().state_bytes, 1);
  Call call;
  call.arena = &arena;
  call.q_pos = {0};
  int32_t known = 0;
  for (const int32_t chunk : chunks) {
    call.k_from = known;
    call.keys = chunk;
    call.k_pos = {known};
    plan.run(in, call);
    known += chunk;
  }
  call.keys = 0;
  call.queries = n;
  call.k_pos = {known};
  return plan.run(in, call);
}

// Ever larger keys change the scale of everything that was summed; ever smaller ones never do.
TEST(Efficient, AppendsKeysThatOutgrowTheScale) {
  const int64_t n = 6, m = 48;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 40));
  for (const float slope : {0.5f, -0.5f, 4.0f, 200.0f}) {
    Inputs in(mech, 1, n, m, 1);
    Array& k = in["k"];
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t f = 0; f < 24; ++f) k.at(0, h, j, f) += slope * static_cast<float>(j);
    const Array whole = run_whole(in, 0, {});
    EXPECT_TRUE(all_finite(whole));
    EXPECT_LE(rms_ratio(streamed(in, std::vector<int32_t>(48, 1), n, m), whole), kGate) << slope;
    EXPECT_LE(rms_ratio(streamed(in, {17, 0, 31}, n, m), whole), kGate) << slope;
    EXPECT_TRUE(same_bits(streamed(in, {48}, n, m), whole)) << slope;
  }
}

TEST(Efficient, AppendsAfterKeysOfMinusInfinity) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 1, 8, 8));
  Inputs in(mech, 1, 4, 10, 1);
  for (int64_t j = 0; j < 5; ++j) in["k"].at(0, 0, j, 2) = -std::numeric_limits<float>::infinity();
  const Array whole = run_whole(in, 0, {});
  EXPECT_TRUE(all_finite(whole));
  EXPECT_LE(rms_ratio(streamed(in, {3, 7}, 4, 10), whole), kGate);
  EXPECT_TRUE(std::isnan(streamed(in, {3}, 4, 10).at(0, 0, 0, 0))) << "a softmax over nothing";
}

TEST(Efficient, ShiftsOfAQueryOrOfAFeatureDoNotMatter) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 16, 16));
  Inputs in(mech, 1, 20, 20, 1), shifted = in;
  for (float& x : shifted["q"].data()) x += 64;
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t j = 0; j < 20; ++j) shifted["k"].at(0, h, j, 3) -= 64;
  EXPECT_LE(rms_ratio(run_whole(shifted, 0, {}), run_whole(in, 0, {})), 2e-5) << "64 costs the inputs six bits";
}

TEST(Efficient, GivesTheCommonValueOfAllKeys) {
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 24, 8));
  Inputs in(mech, 1, 9, 30, 1);
  for (float& x : in["v"].data()) x = 3;
  const Array out = run_whole(in, 0, {});
  for (int64_t i = 0; i < 9; ++i) EXPECT_NEAR(3, out.at(0, 1, i, 5), 2e-6);
}

TEST(Efficient, RefusesCausalBlocks) {
  for (const uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF}) {
    const Mechanism mech(plugin(), make_block(role, true, 2, 24, 24));
    for (const uint32_t flags : {0u, ATTN_STREAM}) {
      try {
        Planned(mech, make_request(1, 4, 4, flags));
        FAIL();
      } catch (const Refused& refused) {
        EXPECT_EQ(ATTN_UNSUPPORTED, refused.code);
        EXPECT_NE(std::string::npos, std::string(refused.what()).find("no causal form"));
      }
    }
  }
}

// Multiply-adds and elements counted one by one, the way the equation is written.
TEST(Efficient, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, d = 24, e = 40, n = 7, m = 11;
  const Mechanism mech(plugin(), make_block(ATTN_DECODER_CROSS, false, heads, d, e));
  uint64_t adds = 0;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t row = 0; row < n + m; ++row)
      for (int64_t f = 0; f < d; ++f) adds += static_cast<uint64_t>(e + 1);
  Inputs in(mech, 1, n, m, 1);
  const auto bytes = [&in](const char* name) {
    return static_cast<uint64_t>(in[name].heads * in[name].rows * in[name].width) * sizeof(float);
  };
  const uint64_t state = static_cast<uint64_t>(heads * (d * e + d + d)) * sizeof(float);
  const attn_info info = Planned(mech, make_request(1, n, m, ATTN_STREAM, m)).info();
  EXPECT_EQ(2 * adds, info.flops);
  EXPECT_EQ((state + 63) / 64 * 64, info.state_bytes);
  EXPECT_EQ(bytes("q") + bytes("k") + bytes("v") + state, info.bytes_read);
  EXPECT_EQ(bytes("o") + state, info.bytes_written);
}

}  // namespace
}  // namespace attnkit::test
